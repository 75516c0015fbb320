"""What people see in Flower, in a real browser: one readable row a trial, with states that move."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BROWSERS
from tests.flowers import Flower, running_flower
from tests.waiting import until
from tests.worker_fleets import WorkerFleet

pytestmark = pytest.mark.browser

PAGE_S = 60.0


@pytest.fixture
def flower(fleet: WorkerFleet) -> Iterator[Flower]:
    with running_flower(fleet) as flower:
        yield flower


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
    fleet: WorkerFleet, flower: Flower, tmp_path: Path
) -> None:
    fleet.start(exec_s=15.0)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=1))
        trial = handle.results().plan.trial(0)
        until(lambda: dict(next(handle.watch()).phases).get("agent") == 1)

        running = page(f"{flower.url}/tasks", tmp_path / "profile-1")

        handle.wait(timeout_s=60)
        finished = page(f"{flower.url}/tasks", tmp_path / "profile-2")
    assert trial.id in running
    assert f"{trial.task.slug} {trial.agent.slug} 1/1" in running
    assert "AGENT" in running
    assert trial.id in finished
    assert "unscored · 15s" in finished
    assert "SUCCESS" in finished
