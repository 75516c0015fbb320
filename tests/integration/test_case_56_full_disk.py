"""A store without space costs results, but no worker, no half a document and no job."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.api import Client
from benchflow_client.embedded.process import has_ended
from benchflow_client.handle import JobHandle
from benchflow_client.ledger.base import JobState
from benchflow_client.schema.job import JobSpec
from tests.fleets import embedded_fleet, instance_of
from tests.waiting import until
from tests.worlds import write_task

CHATTY = "#!/bin/bash\nhead -c 900000 /dev/urandom | base64\necho 1 > /logs/verifier/reward.txt\n"
DISK_BYTES = 8 << 20
ROOM = {"for some trials": 2_500_000, "not even for a summary": 90_000}
TRIES = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes as the jobs folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def client(disk: Path, tmp_path: Path) -> Iterator[Client]:
    with embedded_fleet(tmp_path, jobs_dir=disk / "jobs", BENCHFLOW_RECONCILE_S="0.5") as made:
        yield made


def documents(folder: Path) -> list[Path]:
    return [*folder.rglob("*.json"), *folder.rglob("*.jsonl")]


def is_whole(path: Path) -> bool:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    return bool(lines) and all(json.loads(line) is not None for line in lines)


@pytest.mark.root
@pytest.mark.parametrize("room_bytes", ROOM.values(), ids=ROOM)
def test_full_store_leaves_whole_documents_and_a_worker_that_goes_on(
    client: Client, disk: Path, tmp_path: Path, room_bytes: int
) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(DISK_BYTES - room_bytes))
    task = write_task(tmp_path / "tasks" / "chatty", files={"tests/test.sh": CHATTY})
    spec = JobSpec(tasks=str(task), agent=("oracle",), tries=TRIES, sandbox="local", max_attempts=1)

    handle = client.submit(spec)

    until(lambda: handle.progress().finished == TRIES and lost(handle) > 0)
    until(lambda: handle.progress().state is JobState.CLOSED or "summary of" in log_of(tmp_path))
    worker = instance_of(tmp_path).worker_pid
    assert not has_ended(worker)
    assert all(is_whole(path) for path in documents(disk / "jobs" / handle.name))
    assert "no space left on the disk" in log_of(tmp_path)
    assert "Traceback" not in log_of(tmp_path)
    ballast.unlink()
    summary = handle.wait(timeout_s=60)
    assert (summary.passed + summary.errored, summary.failed) == (TRIES, 0)
    assert {group.code for group in summary.failures} == {"store.write_failed"}
    again = client.submit(JobSpec(tasks=str(task), agent=("oracle",), sandbox="local"))
    assert again.wait(timeout_s=60).passed == 1
    assert not has_ended(worker)


def lost(handle: JobHandle) -> int:
    return handle.progress().outcomes.get("errored", 0)


def log_of(home: Path) -> str:
    (log,) = (home / "state" / "embedded").glob("*/worker.log")
    return log.read_text()
