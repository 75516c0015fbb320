"""A job read back from its store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from benchflow_client.errors import JobNotFoundError, StoreError
from benchflow_client.results.read import (
    PublishedTrial,
    attempt_folders,
    interrupted_attempts,
    read_job,
    stored_results,
    trial_results,
)
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.documents import write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key, summary_key
from benchflow_client.summary import aggregate

MakeResult = Callable[..., TrialResult]
MakeReceipt = Callable[..., Receipt]


def test_running_job_has_a_plan_and_no_summary(store: FileStore, job: str, plan: Plan) -> None:
    results = read_job(store, job)

    assert results.plan == plan
    assert results.summary is None


def test_closed_job_has_its_summary(
    store: FileStore, job: str, plan: Plan, make_receipt: MakeReceipt
) -> None:
    summary = aggregate(plan, [make_receipt(index) for index in range(plan.size)], elapsed_s=4.0)
    write_document(store, summary_key(job), summary)

    assert read_job(store, job).summary == summary


def test_unknown_job_names_the_store(store: FileStore, job: str) -> None:
    with pytest.raises(JobNotFoundError, match="no job 'calm-otter'") as caught:
        read_job(store, "calm-otter")

    assert store.url in caught.value.message


def test_corrupt_plan_is_not_an_unknown_job(store: FileStore, job: str) -> None:
    store.put(f"{job}/plan.json", b"{")

    with pytest.raises(StoreError, match=r"plan\.json"):
        read_job(store, job)


def test_corrupt_summary_is_not_a_running_job(store: FileStore, job: str) -> None:
    store.put(f"{job}/summary.json", b"")

    with pytest.raises(StoreError, match=r"summary\.json"):
        read_job(store, job)


def test_published_trials_come_in_the_order_of_their_receipts(
    store: FileStore, job: str, make_receipt: MakeReceipt, make_result: MakeResult
) -> None:
    receipts = [make_receipt(2), make_receipt(0, 2), make_receipt(1)]

    published = list(trial_results(store, job, receipts))

    assert published == [
        PublishedTrial(receipts[0], make_result(2)),
        PublishedTrial(receipts[1], make_result(0, 2)),
        PublishedTrial(receipts[2], make_result(1)),
    ]


def test_receipt_without_a_document_is_kept(store: FileStore, job: str, make_receipt: MakeReceipt) -> None:
    lost, nowhere = make_receipt(3, 3, outcome="errored"), make_receipt(4, folder="", outcome="errored")

    published = list(trial_results(store, job, [lost, nowhere]))

    assert published == [PublishedTrial(lost, None), PublishedTrial(nowhere, None)]


def test_more_trials_than_are_read_ahead_all_arrive(
    store: FileStore, job: str, make_receipt: MakeReceipt
) -> None:
    receipts = [make_receipt(index % 3, 2 if index % 3 == 0 else 1) for index in range(600)]

    indices = [trial.result.index for trial in trial_results(store, job, receipts) if trial.result]

    assert indices == [index % 3 for index in range(600)]


def test_corrupt_result_is_an_error_and_no_gap(
    store: FileStore, job: str, plan: Plan, make_receipt: MakeReceipt
) -> None:
    store.put(result_key(job, plan.trial(1).folder(1)), b"")

    with pytest.raises(StoreError, match=r"result\.json"):
        list(trial_results(store, job, [make_receipt(1)]))


def test_without_receipts_the_newest_result_of_each_trial_is_read(
    store: FileStore, job: str, plan: Plan, make_result: MakeResult
) -> None:
    older = make_result(0, 1, outcome=Outcome.FAILED)
    write_document(store, result_key(job, older.rollout_name), older)

    found = [(result.index, result.attempt) for result in stored_results(store, plan)]

    assert found == [(0, 2), (1, 1), (2, 1)]


def test_results_of_a_job_that_was_taken_up_again_are_found_and_the_verdict_counts(
    store: FileStore, job: str, plan: Plan, make_result: MakeResult
) -> None:
    """Later ledgers name their folders after another epoch, which nobody has to know."""
    later = datetime(2026, 11, 29, 11, tzinfo=UTC)
    errored: dict[str, Any] = {"outcome": Outcome.ERRORED, "rewards": None, "finished_at": later}
    for result in (
        make_result(3, rollout_name=plan.trial(3).folder(1, epoch=7)),
        make_result(1, rollout_name=plan.trial(1).folder(1, epoch=7), **errored),
        make_result(
            2, rollout_name=plan.trial(2).folder(1, epoch=7), outcome=Outcome.FAILED, finished_at=later
        ),
        make_result(2, rollout_name=plan.trial(2).folder(2, epoch=7), **errored),
        make_result(0, rollout_name="x__00000000", trial="other.fix-build.nop.1"),
        make_result(0, rollout_name="x__00000001").model_copy(update={"index": 99}),
    ):
        write_document(store, result_key(job, result.rollout_name), result)

    found = [
        (result.index, result.outcome.value, result.finished_at.hour)
        for result in stored_results(store, plan)
    ]

    assert found == [(0, "passed", 10), (1, "passed", 10), (2, "failed", 11), (3, "passed", 10)]


def test_attempts_are_finished_or_only_began(store: FileStore, job: str, plan: Plan) -> None:
    store.put(f"{job}/{plan.trial(1).folder(1)}/agent/config.json", b"an agent's own file")

    folders = attempt_folders(store, job)

    assert folders.finished == {plan.trial(0).folder(2), plan.trial(1).folder(1), plan.trial(2).folder(1)}
    assert folders.unfinished == {plan.trial(0).folder(1), plan.trial(3).folder(1)}


def test_interrupted_attempts_say_what_was_interrupted(store: FileStore, job: str, plan: Plan) -> None:
    found = {attempt.trial: attempt for attempt in interrupted_attempts(store, job)}

    assert set(found) == {plan.trial(0).id, plan.trial(3).id}
    attempt = found[plan.trial(3).id]
    assert attempt.folder == plan.trial(3).folder(1)
    assert (attempt.task_name, attempt.agent, attempt.attempt) == ("fix-build", "nop", 1)
    assert attempt.worker == "box-1/1"
    assert attempt.started_at is not None
    assert attempt.started_at.isoformat() == "2026-11-29T10:00:00+00:00"


def test_running_attempts_are_not_interrupted(store: FileStore, job: str, plan: Plan) -> None:
    found = interrupted_attempts(store, job, running=[plan.trial(3).folder(1)])

    assert [attempt.folder for attempt in found] == [plan.trial(0).folder(1)]


def test_interrupted_attempt_is_listed_although_its_config_was_cut_off(store: FileStore, job: str) -> None:
    store.put(f"{job}/x__00000000/config.json", b'{"trial": ')

    found = [attempt for attempt in interrupted_attempts(store, job) if attempt.folder == "x__00000000"]

    assert len(found) == 1
    assert found[0].trial is None
