"""The summary is what the receipts say, whoever gathers it and however often."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from benchflow_client.errors import JobNotFoundError, StoreError, StoreFullError
from benchflow_client.ledger.base import JobState
from benchflow_client.results.read import read_job
from benchflow_client.schema.trial import Receipt
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import rows_key, summary_key
from benchflow_workers.gather import elapsed_s, summarize
from benchflow_workers.jobs import JobBook
from tests.stations import Station


def commit(here: Station, index: int, outcome: str, reward: float | None, code: str = "") -> Receipt:
    fence = here.memory.claim(here.job, index, owner="w", ttl_s=30, max_attempts=9).fence
    receipt = Receipt(index, outcome, reward, code, 1, 2.0, 0.5, 100, f"folder-{index}")
    here.memory.commit(here.job, receipt, fence=fence)
    return receipt


def gather(here: Station, parts: Any = None) -> bool:
    ledger: Any = here.ledger
    return summarize(here.job, parts, ledger=ledger, store=here.world.store, jobs=here.jobs)


@pytest.fixture
def finished(make: Any) -> Station:
    here = make(tries=4)
    commit(here, 0, "passed", 1.0)
    commit(here, 1, "failed", 0.0)
    commit(here, 2, "errored", None, "sandbox.lost")
    commit(here, 3, "cancelled", None)
    return here


def test_summary_counts_what_the_receipts_say(finished: Station) -> None:
    assert gather(
        finished, [[0, "passed", 1.0], [1, "failed", 0.0], [2, "errored", None], [3, "cancelled", None]]
    )

    summary = read_job(finished.world.store, finished.job).summary
    assert summary is not None
    assert (summary.planned, summary.passed, summary.failed, summary.errored, summary.cancelled) == (
        4,
        1,
        1,
        1,
        1,
    )
    assert summary.score_ratio == pytest.approx(1 / 3)
    assert finished.memory.progress(finished.job).state is JobState.CLOSED


def test_one_row_is_written_for_each_trial(finished: Station) -> None:
    gather(finished)

    lines = finished.world.store.get(rows_key(finished.job)).decode().splitlines()

    assert len(lines) == 4
    assert all(isinstance(json.loads(line), dict) for line in lines)


def test_gathering_twice_is_gathering_once(finished: Station) -> None:
    assert gather(finished) is True
    first = finished.world.store.get(summary_key(finished.job))

    assert gather(finished) is False

    assert finished.world.store.get(summary_key(finished.job)) == first


def test_job_that_still_runs_is_not_gathered(make: Any) -> None:
    here = make(tries=2)
    commit(here, 0, "passed", 1.0)

    assert gather(here, [[0, "passed", 1.0], [1, "passed", 1.0]]) is False

    assert not here.world.store.exists(summary_key(here.job))
    assert here.memory.progress(here.job).state is JobState.OPEN


def test_ledger_counts_where_the_chord_says_something_else(
    finished: Station, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        gather(finished, [[0, "failed", 0.0], [1, "failed", 0.0], [2, "errored", None], [9, "passed", 1.0]])

    summary = read_job(finished.world.store, finished.job).summary
    assert summary is not None
    assert summary.passed == 1
    assert "differ in 2 trials, first [0, 'failed', 0.0]" in caplog.text


def test_chord_that_agrees_is_not_mentioned(finished: Station, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        gather(
            finished, [[0, "passed", 1.0], [1, "failed", 0.0], [2, "errored", None], [3, "cancelled", None]]
        )

    assert caplog.text == ""


class FullStore(FileStore):
    """A folder in which nothing can be written."""

    def put(self, key: str, data: bytes) -> None:
        raise StoreFullError(f"No space for {len(data)} bytes of {key!r}.")


def test_job_stays_open_when_its_summary_cannot_be_written(finished: Station) -> None:
    """Written first, closed after: a closed job always has its summary."""
    ledger: Any = finished.ledger
    with pytest.raises(StoreFullError):
        summarize(
            finished.job, None, ledger=ledger, store=FullStore(finished.world.store.root), jobs=finished.jobs
        )

    assert finished.memory.progress(finished.job).state is JobState.OPEN
    assert gather(finished) is True


def test_unknown_job_cannot_be_gathered(finished: Station) -> None:
    finished.memory.forget_job(finished.job)

    with pytest.raises(JobNotFoundError):
        gather(finished)


def test_wall_clock_runs_from_the_opening_to_the_last_receipt(here: Station) -> None:
    here.skip(100)
    commit(here, 0, "passed", 1.0)

    assert elapsed_s(here.memory.progress(here.job)) == pytest.approx(100, abs=5)


def test_wall_clock_of_a_job_without_receipts_is_not_negative(here: Station) -> None:
    assert elapsed_s(here.memory.progress(here.job)) == 0.0


def test_plan_and_header_are_read_once(here: Station) -> None:
    header, plan = here.jobs.get(here.job)
    here.ledger.is_down = True

    assert here.jobs.get(here.job) == (header, plan)
    assert plan.job == here.job


def test_forgotten_job_is_read_again(here: Station) -> None:
    here.jobs.get(here.job)
    seen = here.ledger.calls.count("header")

    here.jobs.forget(here.job)
    here.jobs.forget(here.job)
    here.jobs.get(here.job)

    assert here.ledger.calls.count("header") == seen + 1


def test_book_keeps_the_jobs_used_last(here: Station) -> None:
    ledger: Any = here.ledger
    book = JobBook(ledger, here.world.store)
    for number in range(70):
        job = f"job-{number}"
        here.memory.open_job(type(here.header)(job, 1, 1, 1, "ana", "q", "g", "b", "t", 0.0))
        here.world.store.put(f"{job}/plan.json", here.world.store.get(f"{here.job}/plan.json"))
        book.get(job)
        book.get("job-0")
    seen = here.ledger.calls.count("header")

    book.get("job-0")
    book.get("job-69")
    assert here.ledger.calls.count("header") == seen
    book.get("job-1")

    assert here.ledger.calls.count("header") == seen + 1


def test_job_without_a_plan_in_the_store_is_an_error(here: Station) -> None:
    here.world.store.delete_tree(f"{here.job}/")

    with pytest.raises(StoreError):
        here.jobs.get(here.job)
