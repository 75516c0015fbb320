"""A fleet of one real worker whose sandboxes run nothing, and commands that run in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.embedded.process import end
from benchflow_client.embedded.server import start_server
from benchflow_client.ledger.redis import RedisLedger
from tests.commands import Done, enter_home, runner, write_two_tasks
from tests.waiting import until

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class RealFleet:
    """Where a fleet is."""

    url: str
    store: Path
    ledger: RedisLedger


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """Start a server and a worker process for the queues `null` and `control`."""
    folder = tmp_path_factory.mktemp("fleet")
    server = start_server(folder / "server")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    own = {
        "BENCHFLOW_BROKER_URL": server.url,
        "BENCHFLOW_STORE_URL": str(folder / "store"),
        "BENCHFLOW_STATE_DIR": str(folder / "state"),
        "BENCHFLOW_NULL_EXEC_S": "0.2",
        "PYTHONPATH": str(ROOT),
    }
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchflow_workers", "worker", "--queues", "null,control", "--slots", "2"],
            env={**kept, **own},
            stdout=log,
            stderr=log,
        )
    try:
        found = RealFleet(server.url, folder / "store", RedisLedger.at(server.url))
        log = folder / "worker.log"
        until(lambda: worker.poll() is not None or found.ledger.workers(), what=log.read_text)
        assert worker.poll() is None, log.read_text()
        yield found
    finally:
        worker.terminate()
        worker.wait(timeout=60)
        end(server.pid)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder of a user with no fleet configured."""
    return enter_home(
        tmp_path,
        monkeypatch,
        BENCHFLOW_DOCKER_HOST=f"unix://{tmp_path}/no.sock",
        PYTHONPATH=str(ROOT),
    )


@pytest.fixture
def tasks(home: Path) -> Path:
    """Return a folder of two tasks; `slow.sh` beside it is an agent whose turn takes time."""
    (home / "slow.sh").write_text("#!/bin/sh\n")
    return write_two_tasks(home / "tasks")


@pytest.fixture
def configured(fleet: RealFleet, home: Path, monkeypatch: pytest.MonkeyPatch) -> RealFleet:
    """Configure the fleet for commands of this process."""
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", fleet.url)
    monkeypatch.setenv("BENCHFLOW_STORE_URL", str(fleet.store))
    return fleet


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command in this process."""

    return runner(capsys)
