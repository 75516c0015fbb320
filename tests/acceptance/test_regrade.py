"""A verifier was wrong: the kept workspaces are judged again, no agent runs, no result changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Done, enter_home, runner
from tests.fleets import ROOT
from tests.worlds import write_task

KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))
DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nRUN echo old > /app/kept.txt && echo x > /app/conftest.py && touch /app/gone.txt\n"
WRONG = "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\n"
RIGHT = """#!/bin/sh
fail() { echo "$1"; echo 0 > /logs/verifier/reward.txt; exit 0; }
[ "$(cat answer.txt)" = 42 ] || fail answer
[ "$(stat -c %a answer.txt)" = 400 ] || fail mode
[ "$(cat kept.txt)" = new ] || fail kept
[ ! -e gone.txt ] || fail gone
[ "$(readlink inside)" = answer.txt ] || fail link
[ -e conftest.py ] || fail "what the image brought"
[ ! -e sub/conftest.py ] || fail "what the agent planted"
echo 1 > /logs/verifier/reward.txt
"""
AGENT = """#!/bin/sh
echo 42 > answer.txt && chmod 0400 answer.txt && echo new > kept.txt && rm gone.txt && ln -s answer.txt inside
mkdir sub && touch sub/conftest.py
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_home(tmp_path, monkeypatch, PYTHONPATH=str(ROOT))


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    run = runner(capsys)
    yield run
    run("down")


def documents(folder: Path) -> dict[str, str]:
    """Return the digest of every document of a job that no regrade writes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "regrade" not in str(path.relative_to(folder))
    }


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_kept_workspaces_are_judged_by_the_present_tests_and_results_stay(
    home: Path, bench: Callable[..., Done], kind: str
) -> None:
    for name in ("fix-build", "fix-words"):
        write_task(
            home / "tasks" / name, files={"environment/Dockerfile": DOCKERFILE, "tests/test.sh": WRONG}
        )
    (home / "agent.sh").write_text(AGENT)
    agents = ("--agent", "./agent.sh", "--agent", "nop", "--sandbox", kind)
    assert bench("run", "tasks", *agents, "--freeze-workspace", "--job-name", "first").code == 0
    before = documents(home / "jobs" / "first")
    for name in ("fix-build", "fix-words"):
        (home / "tasks" / name / "tests/test.sh").write_text(RIGHT)
    (home / "tasks/fix-words/instruction.md").write_text("Something else.\n")

    done = bench("regrade", "first", "--reason", "the test was wrong", "--json")

    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["changes"] == {"fail->pass": 1, "same": 1}
    assert {item["trial"]: item["reason"] for item in said["refused"]} == {
        f"first.fix-words.{agent}.1": "its task changed in more than its verifier: instruction"
        for agent in ("agent", "nop")
    }
    assert "fail->pass  first.fix-build.agent.1" in done.err
    assert documents(home / "jobs" / "first") == before
    assert read(home / "jobs/first/regrade-summary.json") == said
    changes = {}
    for path in (home / "jobs/first").glob("fix-build__*/regrade.json"):
        found = read(path)
        changes[found["latest"]["trial"]] = (found["original"]["reward"], found["latest"]["new_reward"])
    assert changes == {"first.fix-build.agent.1": (0.0, 1.0), "first.fix-build.nop.1": (0.0, 0.0)}
    shown = bench("results", "first", "--trials")
    assert "2 trials judged again: 1 fail->pass, 1 same · passed 0/2 -> 1/2" in shown.err
    assert json.loads(bench("results", "first", "--json").out)["regrades"].keys() == changes.keys()
