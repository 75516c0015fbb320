"""Receipts are read back from what a job left in its store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import StoreError
from benchflow_client.results.read import JobResults
from benchflow_client.results.receipts import stored_receipts
from benchflow_client.results.rows import receipt_row
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.documents import json_lines, write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key, rows_key
from benchflow_client.summary import aggregate
from benchflow_workers.trial.recorder import result_of
from benchflow_workers.trial.records import Attempt, Rollout
from benchflow_workers.trial.redact import Redactor
from tests.worlds import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def test_rows_of_a_closed_job_give_every_receipt_back(world: World) -> None:
    receipts = [
        Receipt(0, "failed", 0.5, "agent.timeout", 2, 3.25, None, None, "t__1"),
        *(Receipt(i, "cancelled", None, "", 0, 0.0, None, None, "") for i in range(1, world.plan.size)),
    ]
    rows = json_lines(receipt_row(world.plan, receipt) for receipt in receipts)
    world.store.put(rows_key(world.plan.job), rows)
    summary = aggregate(world.plan, receipts, elapsed_s=1.0)

    assert stored_receipts(world.store, JobResults(world.plan, summary)) == receipts


def test_interrupted_job_has_the_receipts_of_its_published_results(world: World) -> None:
    assert stored_receipts(world.store, JobResults(world.plan, None)) == []


def test_result_after_which_another_attempt_was_to_come_is_no_receipt_of_an_interrupted_job(
    store: FileStore, plan: Plan, make_result: Callable[..., TrialResult]
) -> None:
    lost, refused = (Failure(code=code, message="gone") for code in ("sandbox.lost", "task.unreadable"))
    unscored: dict[str, Any] = {"outcome": Outcome.ERRORED, "rewards": None}
    results = [
        make_result(0, 1, failures=(lost,), **unscored),
        make_result(1, plan.spec.max_attempts, failures=(lost,), **unscored),
        make_result(2, 1, failures=(refused,), **unscored),
        make_result(3, 1, failures=(lost,)),  # it has its verdict
    ]
    for result in results:
        write_document(store, result_key(plan.job, result.rollout_name), result)

    found = stored_receipts(store, JobResults(plan, None))

    assert found == [Receipt.of(result) for result in results[1:]]


def test_damaged_rows_are_named(world: World) -> None:
    summary = aggregate(world.plan, [], elapsed_s=1.0)
    world.store.put(rows_key(world.plan.job), b'{"index": 0}\n')

    with pytest.raises(StoreError, match=r"results\.jsonl has a line"):
        stored_receipts(world.store, JobResults(world.plan, summary))


def test_verdict_published_since_a_job_closed_counts_before_its_row(tmp_path: Path) -> None:
    """A closed job was taken up again, and that was interrupted before it closed once more."""
    world = make_world(tmp_path, tries=3)
    plan = world.plan
    rows = [
        Receipt(0, "passed", 1.0, "", 1, 2.0, None, None, plan.trial(0).folder(1)),
        Receipt(1, "cancelled", None, "", 0, 0.0, None, None, ""),
        Receipt(2, "cancelled", None, "", 0, 0.0, None, None, ""),
    ]
    world.store.put(rows_key(plan.job), json_lines(receipt_row(plan, row) for row in rows))
    for index, rewards in ((1, {"reward": 0.0}), (2, None)):
        attempt = Attempt(plan, plan.trial(index), 1, 1, "box/1", utc_now(), epoch=5)
        result = result_of(attempt, Rollout(rewards=rewards), Redactor())
        write_document(world.store, result_key(plan.job, result.rollout_name), result)

    found = stored_receipts(world.store, JobResults(plan, aggregate(plan, rows, elapsed_s=1.0)))

    assert [(receipt.outcome, receipt.reward) for receipt in found] == [
        ("passed", 1.0),
        ("failed", 0.0),
        ("cancelled", None),
    ]
    assert found[1].folder == plan.trial(1).folder(1, epoch=5)
