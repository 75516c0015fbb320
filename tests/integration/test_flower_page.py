"""What people see in Flower, in a real browser: one readable row a trial, with states that move."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BROWSERS
from tests.stations import until
from tests.worker_fleets import WorkerFleet, worker_fleet

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
LOGIN = "ana:s3cret"
PAGE_S = 60.0


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[WorkerFleet]:
    with worker_fleet(tmp_path, redis_url) as fleet:
        yield fleet


@pytest.fixture
def flower(fleet: WorkerFleet, tmp_path: Path) -> Iterator[str]:
    """Start Flower as deploy/ does and yield its address, login included."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "celery", "-A", "benchflow_workers.app:app", "flower"]
    argv += [f"--conf={ROOT / 'deploy/flower/flowerconfig.py'}", f"--port={port}", "--address=127.0.0.1"]
    with (tmp_path / "flower.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env={**fleet.environ, "FLOWER_BASIC_AUTH": LOGIN}, stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        until(lambda: _answers(port))
        yield f"http://{LOGIN}@127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def page(url: str, profile: Path) -> str:
    """Return the page as the browser has it after its scripts ran."""
    browser = next(path for name in BROWSERS if (path := shutil.which(name)))
    argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"]
    argv += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    argv += [f"--user-data-dir={profile}", "--virtual-time-budget=5000", url]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=PAGE_S,
        check=True,
        env={**os.environ, "HOME": str(profile)},
    )
    return done.stdout


def test_a_trial_is_one_row_with_its_state_its_short_arguments_and_its_result(
    fleet: WorkerFleet, flower: str, tmp_path: Path
) -> None:
    fleet.start(exec_s=15.0)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=1))
        trial = handle.results().plan.trial(0)
        until(lambda: dict(next(handle.watch()).phases).get("agent") == 1)

        running = page(f"{flower}/tasks", tmp_path / "profile-1")

        handle.wait(timeout_s=60)
        finished = page(f"{flower}/tasks", tmp_path / "profile-2")
    assert trial.id in running
    assert f"{trial.task.slug} {trial.agent.slug} 1/1" in running
    assert "AGENT" in running
    assert trial.id in finished
    assert "unscored · 15s" in finished
    assert "SUCCESS" in finished
