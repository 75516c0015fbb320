"""What a regrade writes beside the results it judged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchflow_client.results.read import PublishedTrial
from benchflow_client.results.regrades import (
    TrialRegrades,
    latest_judgements,
    read_regrade_summary,
    write_regrades,
)
from benchflow_client.results.rows import published_row
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import (
    Plan,
    PlannedAgent,
    PlannedTask,
    RefusedTrial,
    Regrade,
    RegradedTrial,
    SourceInfo,
)
from benchflow_client.schema.trial import FrozenWorkspace, Outcome, Receipt, TrialResult
from benchflow_client.store.documents import read_document, write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key

FROZEN = FrozenWorkspace(key="evidence/w", sha256="0" * 64, workdir="/app", entries=0, size_bytes=0)
AGENT = AgentSpec(name="oracle")


def plan(name: str, *rewards: float | None) -> Plan:
    """Return a regrade of one trial for each reward it had."""
    trials = tuple(
        RegradedTrial(
            index=index,
            trial=f"old.t{index}.oracle.1",
            folder=f"t{index}__1",
            frozen=FROZEN,
            task_digest="b" * 64,
            outcome=Outcome.FAILED,
            rewards=None if reward is None else {"reward": reward},
        )
        for index, reward in enumerate(rewards)
    )
    return Plan(
        job=name,
        created_at=utc_now(),
        spec=JobSpec(tasks="tasks", agent=(AGENT,)),
        sandbox="docker",
        source=SourceInfo(path="tasks"),
        tasks=tuple(
            PlannedTask(name=f"t{index}", slug=f"t{index}", digest="a" * 64) for index in range(len(rewards))
        ),
        agents=(PlannedAgent(label="oracle", slug="oracle", spec=AGENT),),
        regrade=Regrade(
            job="old", reason="typo", trials=trials, refused=(RefusedTrial(trial="old.x", reason="why"),)
        ),
    )


def judged(store: FileStore, regrade: Plan, index: int, reward: float | None) -> Receipt:
    """Write the result of a trial that judged, and return its receipt."""
    trial, now = regrade.trial(index), utc_now()
    failures = () if reward is not None else (Failure(code="verifier.no_reward", message="No reward."),)
    outcome = Outcome.VERIFIER_ERRORED if reward is None else Outcome.FAILED
    result = TrialResult(
        job=regrade.job, trial=trial.id, index=index, attempt=1, try_number=1, task_name=trial.task.name,
        task_digest=trial.task.digest, rollout_name=trial.folder(1), agent="oracle", sandbox="docker", worker="w",
        outcome=outcome, rewards=None if reward is None else {"reward": reward}, failures=failures,
        verifier_error="No reward." if failures else None, started_at=now, finished_at=now,
    )  # fmt: skip
    write_document(store, result_key(regrade.job, result.rollout_name), result)
    return Receipt.of(result)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (0.0, 1.0, "fail->pass"),
        (1.0, 0.5, "pass->fail"),
        (0.25, 0.5, "reward 0.25 -> 0.5"),
        (0.5, 0.5, "same"),
        (None, None, "same"),
        (None, 0.0, "scored"),
        (1.0, None, "unscored"),
    ],
)
def test_what_became_of_a_trial_is_one_word(
    store: FileStore, before: float | None, after: float | None, change: str
) -> None:
    regrade = plan("new", before)

    write_regrades(store, regrade, [judged(store, regrade, 0, after)])

    found = read_document(store, "old/t0__1/regrade.json", TrialRegrades)
    assert (found.latest.change, found.original["reward"]) == (change, before)
    assert found.latest.verifier_error == ("No reward." if after is None else None)


def test_every_regrade_of_a_trial_is_kept_and_writing_twice_adds_nothing(store: FileStore) -> None:
    first, second = plan("r-1", 0.0), plan("r-2", 0.0)
    receipts = [judged(store, first, 0, 0.0)]

    write_regrades(store, first, receipts)
    write_regrades(store, second, [judged(store, second, 0, 1.0)])
    write_regrades(store, second, [judged(store, second, 0, 1.0)])

    found = read_document(store, "old/t0__1/regrade.json", TrialRegrades)
    assert [item.id for item in found.regrades] == ["r-1", "r-2"]
    assert found.latest.change == "fail->pass"


def test_readers_get_the_last_judgement_of_each_trial_beside_its_row(store: FileStore) -> None:
    both, again = plan("r-1", 0.0, 0.5), plan("r-2", 0.0)
    assert latest_judgements(store, "old") == {}
    write_regrades(store, both, [judged(store, both, 0, 0.0), judged(store, both, 1, 0.5)])
    write_regrades(store, again, [judged(store, again, 0, 1.0)])

    found = latest_judgements(store, "old")

    assert {name: (item.id, item.new_reward) for name, item in found.items()} == {
        "old.t0.oracle.1": ("r-2", 1.0),
        "old.t1.oracle.1": ("r-1", 0.5),
    }
    job = both.model_copy(update={"job": "old", "regrade": None})
    first = PublishedTrial(Receipt(0, "failed", 0.0, "", 1, 0.0, None, None, "t0__1"), None)
    row = published_row(job, first, found)
    assert (row["outcome"], row["reward"]) == ("failed", 0.0)
    assert {name: value for name, value in row.items() if name.startswith("regrade.")} == {
        "regrade.id": "r-2",
        "regrade.reward": 1.0,
        "regrade.change": "fail->pass",
    }


def test_the_summary_counts_changes_and_names_what_was_refused(store: FileStore) -> None:
    regrade = plan("new", 0.0, 0.0, 0.25, 0.5)
    cancelled = Receipt(3, "cancelled", None, "", 1, 0.0, None, None, "")
    receipts = [judged(store, regrade, index, reward) for index, reward in enumerate((1.0, 0.0, 0.5))]

    write_regrades(store, regrade, [*receipts, cancelled])

    summary = read_regrade_summary(store, "old")
    assert summary is not None
    assert summary.changes == {"fail->pass": 1, "same": 1, "reward": 1, "unscored": 1}
    assert [item.status for item in summary.trials] == ["complete", "complete", "complete", "interrupted"]
    assert (summary.refused[0].reason, summary.reason) == ("why", "typo")


def test_a_trial_whose_result_is_gone_has_failed(store: FileStore) -> None:
    regrade = plan("new", 1.0)

    write_regrades(store, regrade, [Receipt(0, "errored", None, "worker.lost", 3, 0, None, None, "lost__1")])

    found = json.loads(store.get("old/t0__1/regrade.json"))
    assert (found["latest"]["status"], found["latest"]["verifier_error"]) == ("failed", "worker.lost")


def test_a_job_that_is_no_regrade_leaves_nothing_beside_others(store: FileStore) -> None:
    write_regrades(store, plan("new", 1.0).model_copy(update={"regrade": None}), [])

    assert list(store.list("old/")) == []
    assert read_regrade_summary(store, "old") is None
