"""`.env` of a worker's working directory, seen by real trials: who reads it, who wins, and where it never stands."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchflow_client import JobSpec
from benchflow_client.schema.trial import TrialResult
from tests.worker_fleets import WorkerFleet
from tests.worlds import write_task

KEY = "lab-key-4711-do-not-show"
SERVES = "local,control"
LEASE = {"BENCHFLOW_LEASE_TTL_S": "30"}

TOML = """
[solution.env]
PLAIN = "${LAB_API_KEY}"
REGION = "${LAB_REGION}"
"""
SOLVE = """#!/bin/sh
echo "solving with $PLAIN in $REGION"
printf '%s %s' "$PLAIN" "$REGION" > /logs/artifacts/answer
"""
TEST = """#!/bin/sh
cat /logs/artifacts/answer
echo "@SUM@  /logs/artifacts/answer" | sha256sum -c - && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def job(folder: Path, answer: str, *, toml: str = TOML) -> JobSpec:
    """Return a job that passes when the reference solution had exactly these values."""
    test = TEST.replace("@SUM@", hashlib.sha256(answer.encode()).hexdigest())
    write_task(folder / "lab", toml=toml, files={"solution/solve.sh": SOLVE, "tests/test.sh": test})
    return JobSpec(tasks=str(folder), agent=["oracle"], sandbox="local")


def only_trial(fleet: WorkerFleet, spec: JobSpec) -> TrialResult:
    with fleet.client() as client:
        handle = client.submit(spec)
        fleet.closed(handle)
        (trial,) = handle.trials()
    assert trial.result is not None
    return trial.result


@pytest.mark.root
def test_solution_gets_variables_of_the_file_those_of_the_process_win_and_no_value_is_left_anywhere(
    fleet: WorkerFleet,
) -> None:
    (fleet.folder / ".env").write_text(f"# of the lab\nexport LAB_API_KEY='{KEY}'\nLAB_REGION=file\n")
    fleet.start(queues=SERVES, LAB_REGION="process", **LEASE)

    result = only_trial(fleet, job(fleet.folder / "lab-tasks", f"{KEY} process"))

    assert result.rewards == {"reward": 1.0}, fleet.logs()
    left = {path: path.read_bytes() for path in (fleet.folder / "store").rglob("*") if path.is_file()}
    said = [path.name for path, data in left.items() if b"[redacted] process" in data]
    assert "answer" in said
    assert [path for path, data in left.items() if KEY.encode() in data] == []
    assert [name for name, data in fleet.values() if KEY.encode() in data] == []
    assert KEY not in fleet.logs()


@pytest.mark.root
def test_variable_that_is_in_neither_place_is_told_with_both(fleet: WorkerFleet) -> None:
    (fleet.folder / ".env").write_text("LAB_REGION=file\n")
    fleet.start(queues=SERVES, **LEASE)

    result = only_trial(fleet, job(fleet.folder / "lab-tasks", ""))

    failure = result.failures[-1]
    assert (result.rewards, failure.code) == (None, "agent.env_missing")
    assert "LAB_API_KEY" in failure.message
    assert "neither in this worker's environment nor in .env of its working directory" in failure.message


def test_worker_with_a_broken_line_does_not_start_and_tells_its_number_only(fleet: WorkerFleet) -> None:
    (fleet.folder / ".env").write_text(f"A=1\n{KEY}\n")

    code, said = fleet.refused()

    assert code == 3
    assert f"{fleet.folder}/.env, line 2: it is not of the form NAME=VALUE" in said
    assert KEY not in said


def test_health_of_a_worker_does_not_depend_on_the_file(fleet: WorkerFleet) -> None:
    fleet.start()
    (fleet.folder / ".env").write_text(f"{KEY}\n")

    assert fleet.is_healthy()
