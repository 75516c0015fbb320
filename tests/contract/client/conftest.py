"""A fleet of one real worker whose sandboxes run nothing, and commands that run in this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.cli.main import run_command
from benchflow_client.embedded.process import end
from benchflow_client.embedded.server import start_server
from benchflow_client.ledger.redis import RedisLedger

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class RealFleet:
    """Where a fleet is."""

    url: str
    store: Path
    ledger: RedisLedger


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


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
        deadline = time.monotonic() + 60
        while not found.ledger.workers():
            assert worker.poll() is None, (folder / "worker.log").read_text()
            assert time.monotonic() < deadline, (folder / "worker.log").read_text()
            time.sleep(0.02)
        yield found
    finally:
        worker.terminate()
        worker.wait(timeout=60)
        end(server.pid)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder of a user with no fleet configured."""
    for name in list(os.environ):
        if name.startswith("BENCHFLOW_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    for name, value in (
        ("HOME", str(folder)),
        ("BENCHFLOW_STATE_DIR", str(tmp_path / "state")),
        ("BENCHFLOW_USER", "ana"),
        ("BENCHFLOW_DOCKER_HOST", f"unix://{tmp_path}/no.sock"),
        ("PYTHONPATH", str(ROOT)),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tasks(home: Path) -> Path:
    """Return a folder of two tasks; `slow.sh` beside it is an agent whose turn takes time."""
    (home / "slow.sh").write_text("#!/bin/sh\n")
    for name in ("one", "two"):
        for path, text in (
            ("task.toml", 'version = "1.0"\n'),
            ("instruction.md", f"Do {name}.\n"),
            ("environment/Dockerfile", "FROM debian:bookworm-slim\n"),
            ("tests/test.sh", "exit 0\n"),
        ):
            (home / "tasks" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (home / "tasks" / name / path).write_text(text)
    return home / "tasks"


@pytest.fixture
def configured(fleet: RealFleet, home: Path, monkeypatch: pytest.MonkeyPatch) -> RealFleet:
    """Configure the fleet for commands of this process."""
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", fleet.url)
    monkeypatch.setenv("BENCHFLOW_STORE_URL", str(fleet.store))
    return fleet


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command in this process."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run
