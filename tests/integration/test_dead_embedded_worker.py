"""An embedded worker that was killed leaves containers; stopping its fleet removes them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from benchflow_client import Client, JobSpec
from benchflow_client.embedded.fleet import EmbeddedFleet
from benchflow_client.embedded.process import has_ended
from benchflow_client.settings import load
from tests.fleets import instance_of
from tests.waiting import until

pytestmark = pytest.mark.docker


def containers(fleet: str) -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", f"label=bf.fleet={fleet}"]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout.split()


PLACES = (
    pytest.param("", "sleep 600", "true", "agent", id="the agent's"),
    pytest.param(
        '[verifier]\nenvironment_mode = "separate"\n', "true", "sleep 600", "verifying", id="the tests'"
    ),
)
"""Whose sandbox is there when the worker dies: more of the task, its solution, its tests, the phase."""


@pytest.mark.parametrize(("toml", "solution", "test", "phase"), PLACES)
def test_stopping_a_fleet_whose_worker_was_killed_removes_its_containers(
    tmp_path: Path, toml: str, solution: str, test: str, phase: str
) -> None:
    tasks, state, jobs = tmp_path / "t", tmp_path / "state", tmp_path / "jobs"
    for part in ("environment", "tests", "solution"):
        (tasks / part).mkdir(parents=True)
    (tasks / "task.toml").write_text(f'version = "1.0"\n{toml}')
    (tasks / "instruction.md").write_text("Wait.\n")
    (tasks / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\n")
    (tasks / "solution" / "solve.sh").write_text(f"{solution}\n")
    (tasks / "tests" / "test.sh").write_text(f"{test}\necho 1 > /logs/verifier/reward.txt\n")
    environ = {"BENCHFLOW_STATE_DIR": str(state), "HOME": str(tmp_path), "USER": "ana"}
    fleet = EmbeddedFleet(state, jobs, os.environ)
    name = fleet.own_environ["BENCHFLOW_FLEET"]
    with Client(settings=load(environ), jobs_dir=jobs) as client:
        handle = client.submit(
            JobSpec(tasks=str(tasks), agent="oracle", sandbox="docker", tries=2, jobs_dir=str(jobs))
        )
        until(lambda: dict(next(handle.watch()).phases).get(phase) == 2)
        assert len(containers(name)) == 2
        worker_pid = instance_of(tmp_path).worker_pid

        os.kill(worker_pid, signal.SIGKILL)
        until(lambda: has_ended(worker_pid))

        assert fleet.stop() is False
        assert containers(name) == []
