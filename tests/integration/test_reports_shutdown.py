"""What others met with stopping: threads that cannot be ended, revokes that are lost, drains that waste work."""

from __future__ import annotations

import re
import signal
import time

from benchflow_client.ledger.base import JobState
from tests.waiting import until
from tests.worker_fleets import WorkerFleet

HOUR_S = 3600.0
LEASE_S = 8


def test_cancelled_trial_ends_within_half_a_lease_and_its_thread_is_free_again(fleet: WorkerFleet) -> None:
    worker = fleet.start(slots=1, exec_s=HOUR_S, BENCHFLOW_LEASE_TTL_S=str(LEASE_S))
    with fleet.client() as client:
        for _ in range(2):
            handle = client.submit(fleet.spec(tries=1))
            until(lambda job=handle: fleet.running_on(job, worker) == 1)  # type: ignore[misc]
            asked_at = time.monotonic()

            handle.cancel(by="ana", reason="wrong model")

            until(lambda job=handle: fleet.receipts(job))  # type: ignore[misc]
            assert time.monotonic() - asked_at < LEASE_S / 2
            assert fleet.closed(handle).cancelled == 1
    assert worker.poll() is None


def test_job_cancelled_while_no_worker_lives_runs_nothing_afterwards(fleet: WorkerFleet) -> None:
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=12, concurrency=6))
        handle.cancel(by="ana", reason="wrong model")

        fleet.start()

        assert fleet.closed(handle).cancelled == 12
    assert re.findall(r"trial \S+ started", fleet.logs()) == []
    assert list((fleet.folder / "store" / handle.name).glob("*/config.json")) == []


def test_trial_that_ends_during_the_grace_of_a_stopping_worker_counts(fleet: WorkerFleet) -> None:
    worker = fleet.start(slots=2, exec_s=2.0, BENCHFLOW_DRAIN_GRACE_S="60")
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=2, concurrency=2))
        until(lambda: fleet.running_on(handle, worker) == 2)

        worker.send_signal(signal.SIGTERM)

        assert worker.wait(timeout=60) == 0
        receipts = fleet.receipts(handle)
        assert [(receipt.outcome, receipt.attempts) for receipt in receipts] == [("unscored", 1)] * 2
        assert {trial.result.worker for trial in handle.trials() if trial.result} == {fleet.name_of(worker)}
        fleet.start()
        assert fleet.closed(handle).unscored == 2
    assert handle.progress().state is JobState.CLOSED


def test_a_worker_that_is_interrupted_twice_leaves_at_once_and_wastes_nothing(fleet: WorkerFleet) -> None:
    """The first Ctrl-C waits for the grace; the second does not, and still closes what runs."""
    worker = fleet.start(slots=2, exec_s=HOUR_S, BENCHFLOW_DRAIN_GRACE_S="3600")
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=2, concurrency=2))
        until(lambda: fleet.running_on(handle, worker) == 2)
        worker.send_signal(signal.SIGINT)
        until(lambda: fleet.ledger.workers()[0].state == "draining")
        assert fleet.running_on(handle, worker) == 2

        worker.send_signal(signal.SIGINT)

        assert worker.wait(timeout=20) == 130
        progress = handle.progress()
        assert (progress.running, progress.retried) == (0, 0)
        assert fleet.ledger.workers() == []
        fleet.start()
        assert fleet.closed(handle).unscored == 2
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}
