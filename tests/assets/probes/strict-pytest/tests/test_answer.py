import json
import os
from pathlib import Path

WORK = Path(os.environ["BENCHFLOW_AGENT_CWD"])


def test_the_numbers_are_still_there():
    assert (WORK / "numbers.txt").read_text() == "12\n30\n"


def test_the_sum_is_right():
    assert json.loads((WORK / "sum.txt").read_text()) == 42
