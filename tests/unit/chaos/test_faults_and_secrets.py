"""Choosing faults, killing what was named, and finding a secret in whatever form it travels."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_client.chaos.evidence import mounts_below, settled
from benchflow_client.chaos.faults import DrainWorker, Injector, KillProcess
from benchflow_client.chaos.mailbox import check_broker
from benchflow_client.chaos.material import write_agent, write_task
from benchflow_client.chaos.secret_search import Needle, search_files, search_store
from benchflow_client.errors import BrokerError, StoreError, UsageError
from benchflow_client.store.files import FileStore
from benchflow_client.tasks.read import read_task

CHANCE = random.Random(0)
SECRET = 'canary "93hf" ü'


class Spoken:
    """A fault that notes each injection."""

    def __init__(self, name: str, said: list[str], *, text: str = "done") -> None:
        self.name = name
        self._said = said
        self._text = text

    def inject(self, chance: random.Random) -> str:
        self._said.append(self.name)
        if self._text == "fails":
            raise BrokerError("The broker is down.")
        return self._text


def rounds(number: int, said: list[str]) -> Injector:
    faults = [Spoken(name, said) for name in "abcd"]
    return Injector(faults, seed=number, every_s=0.01, for_s=60.0)


def test_every_fault_comes_once_before_any_comes_twice_and_a_seed_repeats_the_order() -> None:
    first, again, other = list[str](), list[str](), list[str]()

    rounds(3, first).run(lambda: len(first) >= 8)
    rounds(3, again).run(lambda: len(again) >= 8)
    rounds(4, other).run(lambda: len(other) >= 8)

    assert sorted(first[:4]) == ["a", "b", "c", "d"]
    assert first == again != other


def test_named_faults_come_first_in_their_order_whatever_the_seed() -> None:
    for seed in range(3):
        said: list[str] = []
        others = [Spoken(name, said) for name in "abcd"]
        named = [Spoken("kill", said), Spoken("drain", said, text="")]
        injector = Injector(others, seed=seed, every_s=0.01, for_s=60.0, named=named)

        injector.run(lambda said=said: len(said) >= 6)  # type: ignore[misc]

        assert said[:2] == ["kill", "drain"]
        assert sorted(said[2:]) == ["a", "b", "c", "d"]
        assert [injector.has_happened(fault) for fault in named] == [True, False]


def test_named_fault_does_not_wait_until_a_small_job_is_over() -> None:
    said: list[str] = []
    named = [Spoken("kill", said)]

    Injector([], seed=1, every_s=10_000.0, for_s=60.0, named=named).run(lambda: bool(said))

    assert said == ["kill"]


def test_drain_that_could_not_be_asked_for_is_asked_for_again() -> None:
    answers = iter([BrokerError("The broker is down."), None])
    asked: list[str] = []

    def drain(worker: str) -> None:
        if error := next(answers):
            raise error
        asked.append(worker)

    fault = DrainWorker("box/1", drain)
    with pytest.raises(BrokerError):
        fault.inject(CHANCE)

    assert fault.inject(CHANCE) == "box/1"
    assert asked == ["box/1"]


def test_faults_that_do_nothing_or_fail_are_not_reported() -> None:
    said: list[str] = []
    faults = [Spoken("idle", said, text=""), Spoken("broken", said, text="fails"), Spoken("real", said)]

    done = Injector(faults, seed=1, every_s=0.01, for_s=60.0).run(lambda: len(said) >= 6)

    assert {injection.fault for injection in done} == {"real"}
    assert set(said) == {"idle", "broken", "real"}
    assert [injection.at_s for injection in done] == sorted(injection.at_s for injection in done)


def test_no_fault_comes_after_its_time_or_where_there_is_none() -> None:
    looks = iter(range(5))
    said: list[str] = []

    assert Injector([Spoken("a", said)], seed=1, every_s=0.01, for_s=-1.0).run(lambda: next(looks) == 4) == []
    assert Injector([], seed=1, every_s=0.01, for_s=60.0).run(lambda: True) == []
    assert said == []


def test_process_is_killed_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        fault = KillProcess(process.pid)

        assert fault.inject(CHANCE) == f"kill -9 {process.pid}"
        assert process.wait(timeout=20) == -9
        assert fault.inject(CHANCE) == ""


def test_process_that_is_gone_is_nothing_to_kill() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=20)

    assert KillProcess(process.pid).inject(CHANCE) == ""


def test_worker_is_drained_once() -> None:
    asked: list[str] = []
    fault = DrainWorker("box/1", asked.append)

    assert [fault.inject(CHANCE), fault.inject(CHANCE)] == ["box/1", ""]
    assert asked == ["box/1"]


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_secret_is_found_raw_in_json_and_in_base64_at_any_place(before: str) -> None:
    needle, text = Needle(SECRET), f"{before}{SECRET} and more"

    assert needle.is_in(text.encode())
    assert needle.is_in(json.dumps([text]).encode())
    assert needle.is_in(base64.b64encode(text.encode()))
    assert not needle.is_in(base64.b64encode(b"something else, quite long"))
    assert not needle.is_in(b"canary")


def test_secret_is_found_in_files_and_documents_also_across_the_parts_they_are_read_in(
    tmp_path: Path,
) -> None:
    clean, dirty = tmp_path / "clean.log", tmp_path / "dirty.log"
    clean.write_bytes(b"x" * 3_000_000)
    dirty.write_bytes(b"x" * ((1 << 20) - 5) + SECRET.encode() + b"x" * 2_000_000)
    store = FileStore(tmp_path / "store")
    store.put("job/a/result.json", SECRET.encode())
    store.put("job/b/result.json", b"{}")
    store.put("other/result.json", SECRET.encode())

    assert list(search_files((clean, dirty), Needle(SECRET))) == [f"file {dirty}"]
    assert list(search_store(store, Needle(SECRET), "job/")) == ["document job/a/result.json"]


def test_log_that_cannot_be_read_is_an_error_and_not_a_clean_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        list(search_files([tmp_path / "missing.log"], Needle(SECRET)))


def test_what_stays_is_returned_when_the_time_is_over_and_what_goes_is_waited_for() -> None:
    left = [("a", "b"), ("b",), ()]

    assert settled(lambda: left.pop(0), deadline=float("inf")) == ()
    assert settled(lambda: ("a",), deadline=0.0) == ("a",)
    assert settled(lambda: None, deadline=float("inf")) is None


def test_no_mount_is_below_a_fresh_folder_and_some_are_below_the_root(tmp_path: Path) -> None:
    assert mounts_below(tmp_path) == frozenset()
    assert "/proc" not in mounts_below(Path("/proc"))


def test_broker_whose_queues_cannot_be_looked_into_is_refused() -> None:
    check_broker("redis://:secret@box:6379/0")

    with pytest.raises(UsageError, match="RabbitMQ"):
        check_broker("amqp://user:secret@box:5672//")


def test_task_of_a_chaos_run_is_one_that_every_sandbox_can_run(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path))

    assert (task.name, task.warnings if hasattr(task, "warnings") else ()) == ("chaos", ())


def test_agent_prints_the_canary_where_there_is_one(tmp_path: Path) -> None:
    loud = write_agent(tmp_path, trial_s=0.5, canary="CANARY")
    done = subprocess.run(
        ["sh", "-c", loud.read_text().replace("/app/out.txt", str(tmp_path / "out.txt"))],
        env={"CANARY": SECRET, "PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    silent = write_agent(tmp_path, trial_s=0.5, canary=None)

    assert done.stdout == f"{SECRET}\n"
    assert (tmp_path / "out.txt").read_text() == "done\n"
    assert "echo done" in silent.read_text()
    assert "CANARY" not in silent.read_text()
