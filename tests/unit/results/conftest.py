"""A small job of two tasks, two agents and two tries in a folder store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import AgentUsage, Outcome, Receipt, Timing, TrialResult
from benchflow_client.store.documents import write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import plan_key, result_key

JOB = "calm-otter-7f3a"
MakeResult = Callable[..., TrialResult]
MakeReceipt = Callable[..., Receipt]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def plan() -> Plan:
    spec = JobSpec(tasks="tasks", agent=(AgentSpec(name="oracle"), AgentSpec(name="nop")), tries=2)
    return Plan(
        job=JOB,
        created_at=datetime(2026, 11, 29, 10, tzinfo=UTC),
        spec=spec,
        sandbox="local",
        source=SourceInfo(path="tasks"),
        tasks=(
            PlannedTask(name="fetch-note", slug="fetch-note", digest="a" * 64),
            PlannedTask(name="fix-build", slug="fix-build", digest="b" * 64),
        ),
        agents=tuple(PlannedAgent(label=a.name, slug=a.name, spec=a) for a in spec.agent),
    )


@pytest.fixture
def make_result(plan: Plan) -> MakeResult:
    """Return a function that makes the result of a trial, passed unless told otherwise."""

    def make(index: int, attempt: int = 1, **changes: Any) -> TrialResult:
        trial = plan.trial(index)
        result = TrialResult(
            job=plan.job,
            trial=trial.id,
            index=index,
            attempt=attempt,
            try_number=trial.try_number,
            task_name=trial.task.name,
            task_digest=trial.task.digest,
            rollout_name=trial.folder(attempt),
            agent=trial.agent.label,
            sandbox="local",
            worker="box-1/1",
            outcome=Outcome.PASSED,
            rewards={"reward": 1.0},
            agent_result=AgentUsage(n_tool_calls=3, n_prompts=1),
            timing=Timing(agent_execution=1.5, verifier=0.5, total=2.25),
            started_at=datetime(2026, 11, 29, 10, 0, tzinfo=UTC),
            finished_at=datetime(2026, 11, 29, 10, 0, 2, 250_000, tzinfo=UTC),
        )
        return result.model_copy(update=changes)

    return make


@pytest.fixture
def make_receipt(plan: Plan) -> MakeReceipt:
    """Return a function that makes the receipt of a passed trial."""

    def make(index: int, attempt: int = 1, **changes: Any) -> Receipt:
        folder = plan.trial(index).folder(attempt)
        return Receipt(index, "passed", 1.0, "", attempt, 2.25, None, None, folder)._replace(**changes)

    return make


@pytest.fixture
def job(store: FileStore, plan: Plan, make_result: MakeResult) -> str:
    """A job in the store: trials 0-2 finished, trial 0 at its second attempt, trial 3 interrupted."""
    write_document(store, plan_key(JOB), plan)
    for index, attempt in ((0, 2), (1, 1), (2, 1)):
        put_attempt(store, make_result(index, attempt))
    put_config(store, plan, 0, 1)
    put_config(store, plan, 3, 1)
    return JOB


def put_attempt(store: FileStore, result: TrialResult) -> None:
    prefix = f"{result.job}/{result.rollout_name}"
    store.put(f"{prefix}/config.json", b"{}")
    store.put(f"{prefix}/agent/oracle.txt", b"said\n")
    write_document(store, result_key(result.job, result.rollout_name), result)


def put_config(store: FileStore, plan: Plan, index: int, attempt: int) -> None:
    trial = plan.trial(index)
    text = (
        f'{{"schema_version": 1, "trial": "{trial.id}", "task_name": "{trial.task.name}", "agent": '
        f'"{trial.agent.label}", "model": null, "attempt": {attempt}, "worker": "box-1/1", '
        f'"agent_env": [], "started_at": "2026-11-29T10:00:00+00:00"}}'
    )
    store.put(f"{plan.job}/{trial.folder(attempt)}/config.json", text.encode())
