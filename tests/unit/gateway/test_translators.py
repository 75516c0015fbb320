"""LiteLLM's processes: started when they are needed, one for each place, told no more than they must know, never left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import AgentError
from benchflow_workers.gateway import translator_program
from benchflow_workers.gateway.target import Translation
from benchflow_workers.gateway.translator import Translated, Translators
from tests.waiting import until

ROOT = Path(__file__).parents[3]
STAND_IN = ROOT / "tests/assets/litellm_stand_in"
PROGRAM = ("env", f"PYTHONPATH={STAND_IN}", sys.executable, "-P", str(translator_program.__file__))
KEY = "the-providers-" + "own-key-0123456789"
HERE = Translation("custom_openai", (("api_base", "http://10.0.0.1/v1"), ("api_key", KEY)))
THERE = Translation("bedrock", (("api_key", KEY), ("aws_region_name", "eu-west-1")))
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HTTPS_PROXY": "http://proxy.lan:3128",
    "OPENAI_API_KEY": "another-key",
    "BENCHFLOW_BROKER_URL": "redis://:word@redis/0",
}


@pytest.fixture
def translators(tmp_path: Path) -> Iterator[Translators]:
    made = Translators(tmp_path / "translators", ENVIRON, program=PROGRAM)
    yield made
    made.close()


def said_by(translated: Translated) -> dict[str, Any]:
    with urllib.request.urlopen(f"{translated.url}/said", timeout=30) as answer:
        return dict(json.load(answer))


def is_alive(pid: int) -> bool:
    stat_file = Path(f"/proc/{pid}/stat")
    return stat_file.exists() and stat_file.read_text().rpartition(") ")[2][0] != "Z"


def test_all_who_need_one_at_once_have_the_same(translators: Translators) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(translators.running, [HERE] * 4))

    assert len({said_by(one)["pid"] for one in found}) == 1
    assert len({one.key for one in found}) == 1


def test_keys_stand_in_no_file_and_no_command_line(translators: Translators, tmp_path: Path) -> None:
    running = translators.running(HERE)

    said = said_by(running)
    files = [path for path in (tmp_path / "translators").rglob("*") if path.is_file()]
    argv = Path(f"/proc/{said['pid']}/cmdline").read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert all(secret not in path.read_text() for path in files for secret in (KEY, running.key))
    assert KEY.encode() not in argv
    assert running.key.encode() not in argv
    assert running.key not in repr(running)
    (entry,) = said["config"]["model_list"]
    given = entry["litellm_params"]
    assert (entry["model_name"], given.pop("model")) == ("*", "custom_openai/*")
    assert {name: said["environ"][value.removeprefix("os.environ/")] for name, value in given.items()} == {
        "api_base": "http://10.0.0.1/v1",
        "api_key": KEY,
    }
    assert said["environ"]["LITELLM_MASTER_KEY"] == running.key


def test_nothing_else_of_the_worker_is_told(translators: Translators) -> None:
    environ = said_by(translators.running(HERE))["environ"]

    assert environ["HTTPS_PROXY"] == ENVIRON["HTTPS_PROXY"]
    assert not {"OPENAI_API_KEY", "BENCHFLOW_BROKER_URL"} & environ.keys()
    assert environ["HOME"] != os.environ.get("HOME")


def test_one_that_nobody_uses_gives_way_to_another(translators: Translators) -> None:
    unused = said_by(translators.running(HERE))["pid"]
    used = translators.running(THERE)

    both = said_by(translators.running(HERE))["pid"]

    assert not is_alive(unused)
    assert both != unused
    assert is_alive(said_by(used)["pid"])


def test_one_that_died_is_started_again(translators: Translators) -> None:
    first = translators.running(HERE)
    pid = said_by(first)["pid"]
    os.kill(pid, signal.SIGKILL)

    def is_another() -> bool:
        with contextlib.suppress(OSError):  # it takes a moment to die
            return bool(said_by(translators.running(HERE))["pid"] != pid)
        return False

    until(is_another)
    assert translators.running(HERE).key == first.key


def test_closing_ends_all_of_them(translators: Translators) -> None:
    pids = [said_by(translators.running(place))["pid"] for place in (HERE, THERE)]

    translators.close()
    translators.close()

    assert [is_alive(pid) for pid in pids] == [False, False]


@pytest.mark.parametrize(
    ("prefix", "said"), [("ends", "it ended with exit code 3"), ("silent", "does not answer within 1 s")]
)
def test_one_that_does_not_start_is_told(tmp_path: Path, prefix: str, said: str) -> None:
    translators = Translators(tmp_path, ENVIRON, program=PROGRAM, ready_s=60 if prefix == "ends" else 1)

    with pytest.raises(AgentError, match=said) as caught:
        translators.running(Translation(prefix, ()))

    assert caught.value.code == "agent.provider_failed"
    assert "output.log" in caught.value.hint
    translators.close()


def test_one_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, signal; from pathlib import Path; from benchflow_workers.gateway.target import Translation; "
        "from benchflow_workers.gateway.translator import Translators; "
        f"made = Translators(Path({str(tmp_path)!r}), {{}}, program={PROGRAM!r}); "
        "print(made.running(Translation('bedrock', ())).url, flush=True); signal.pause()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with worker:
        assert worker.stdout is not None
        url = worker.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/said", timeout=30) as answer:
            pid = json.load(answer)["pid"]
        worker.kill()

    until(lambda: not is_alive(pid))
