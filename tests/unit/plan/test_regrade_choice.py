"""Which trials of a job can be judged again, where, and why others cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.plan.draft import find_work, make_draft
from benchflow_client.plan.regrade import RegradeRequest, regrade_draft
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import FrozenWorkspace, Outcome, StepResult, TrialResult
from benchflow_client.store.files import FileStore
from tests.worlds import write_task

FROZEN = FrozenWorkspace(key="evidence/w", sha256="0" * 64, workdir="/app", entries=0, size_bytes=0)


@pytest.fixture
def job(tmp_path: Path) -> Plan:
    write_task(tmp_path / "tasks" / "one")
    spec = JobSpec(tasks=str(tmp_path / "tasks"), agent=("nop",), job_name="first")
    return make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="docker").plan


def result(job: Plan, **changes: Any) -> TrialResult:
    trial, now = job.trial(0), utc_now()
    made = TrialResult(
        job=job.job, trial=trial.id, index=0, attempt=1, try_number=1, task_name=trial.task.name,
        task_digest=trial.task.digest, rollout_name=trial.folder(1), agent="nop", sandbox="docker", worker="w",
        outcome=Outcome.FAILED, rewards={"reward": 0.0}, frozen=FROZEN, started_at=now, finished_at=now,
    )  # fmt: skip
    return made.model_copy(update=changes)


def regraded(job: Plan, found: TrialResult, tmp_path: Path, **ask: Any) -> Plan:
    store = FileStore(tmp_path / "store")
    return regrade_draft(job, [found], RegradeRequest(**ask), store=store, cache_dir=tmp_path / "cache").plan


def test_tests_run_where_the_agents_ran_or_where_they_are_asked_to(job: Plan, tmp_path: Path) -> None:
    assert regraded(job, result(job), tmp_path).sandbox == "docker"
    assert regraded(job, result(job), tmp_path, sandbox="local").sandbox == "local"


def test_kind_that_cannot_run_the_task_is_the_reason(job: Plan, tmp_path: Path) -> None:
    compose = "services:\n  main: {}\n  db: {image: debian:bookworm-slim}\n"
    folder = write_task(tmp_path / "tasks" / "one", files={"environment/docker-compose.yaml": compose})
    spec = JobSpec(tasks=str(folder), agent=("nop",), job_name="first")
    beside = make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="docker").plan

    with pytest.raises(UsageError, match=r"cannot run on sandbox local: environment/docker-compose\.yaml"):
        regraded(beside, result(beside), tmp_path, sandbox="local")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"frozen": None}, "its workspace was not kept"),
        (
            {"frozen": FROZEN.model_copy(update={"left_out": ("/srv/a", "/srv/b")})},
            "its tests were given /srv/a, /srv/b besides, which was not kept",
        ),
        ({"frozen": None, "steps": (StepResult(name="a"),)}, "its task has several steps"),
    ],
)
def test_trial_without_a_kept_workspace_is_refused_with_the_reason(
    job: Plan, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        regraded(job, result(job, **changes), tmp_path)
