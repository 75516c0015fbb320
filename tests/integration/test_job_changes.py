"""A person changes their mind: pause and go on, run trials again, take a lost job up again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.ledger.base import JobState
from tests.waiting import until
from tests.worker_fleets import WorkerFleet

CLOSES_S = 90.0


def test_paused_job_stands_still_and_then_goes_on(fleet: WorkerFleet) -> None:
    fleet.start(exec_s=0.2)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=20, concurrency=4))
        until(lambda: handle.progress().finished > 2)

        assert handle.pause(by="ana", reason="quota")

        until(lambda: handle.progress().running == 0)
        finished = handle.progress().finished
        view = next(handle.watch())
        assert (view.state, view.waiting_for) == ("paused", "paused by ana: quota")
        assert handle.progress().finished == finished < 20
        assert handle.resume()
        summary = handle.wait(timeout_s=CLOSES_S)
    assert (summary.planned, summary.unscored) == (20, 20)
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}


def test_cancelled_trials_run_again_and_the_others_keep_their_results(fleet: WorkerFleet) -> None:
    fleet.start(exec_s=0.2)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=30, concurrency=4))
        until(lambda: handle.progress().finished > 3)
        with pytest.raises(UsageError, match="still runs"):
            handle.retry()
        handle.cancel(by="ana", reason="wrong model")
        before = handle.wait(timeout_s=CLOSES_S)
        kept = {r.trial_index: r for r in fleet.receipts(handle) if r.outcome == "unscored"}
        assert before.cancelled == 30 - len(kept) > 0

        assert handle.retry(("cancelled",)) == before.cancelled

        after = handle.wait(timeout_s=CLOSES_S)
        assert handle.retry(("cancelled",)) == 0
    assert (after.cancelled, after.unscored) == (0, 30)
    receipts = {receipt.trial_index: receipt for receipt in fleet.receipts(handle)}
    assert {index: receipts[index] for index in kept} == kept
    assert len({receipt.folder for receipt in receipts.values()}) == 30


def test_job_goes_on_from_the_store_after_the_ledger_lost_everything(fleet: WorkerFleet) -> None:
    worker = fleet.start(exec_s=0.2)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=24, concurrency=4, job_name=f"j-{uuid.uuid4().hex[:6]}"))
        until(lambda: handle.progress().finished > 5)
        worker.kill()
        worker.wait()
        finished = {receipt.trial_index: receipt.folder for receipt in fleet.receipts(handle)}
        fleet.redis.flushdb()

        again = client.recover(handle.name)

        assert again.progress().finished >= len(finished)
        fleet.start(exec_s=0.05)
        summary = again.wait(timeout_s=CLOSES_S)
        assert client.recover(handle.name).progress().state is JobState.CLOSED
    assert (summary.planned, summary.unscored) == (24, 24)
    folders = {receipt.trial_index: receipt.folder for receipt in fleet.receipts(again)}
    assert {index: folders[index] for index in finished} == finished


def test_job_whose_ledger_is_lost_twice_keeps_what_ended_under_either(fleet: WorkerFleet) -> None:
    """Folders of the second life are named after another epoch; the third one finds them all the same."""
    ended: dict[int, str] = {}
    with fleet.client() as client:
        name = client.submit(fleet.spec(tries=24, concurrency=4)).name
        for _ in range(2):
            worker = fleet.start(exec_s=0.2)
            enough = len(ended) + 4
            until(lambda enough=enough: client.job(name).progress().finished >= enough)  # type: ignore[misc]
            worker.kill()
            worker.wait()
            found = {receipt.trial_index: receipt.folder for receipt in fleet.receipts(client.job(name))}
            assert ended.items() <= found.items()
            ended = found
            fleet.redis.flushdb()
            client.recover(name)

        fleet.start()
        summary = client.job(name).wait(timeout_s=CLOSES_S)
        folders = {receipt.trial_index: receipt.folder for receipt in fleet.receipts(client.job(name))}

    assert (summary.planned, summary.unscored) == (24, 24)
    assert ended.items() <= folders.items()
    assert len(set(folders.values())) == 24


def test_closed_job_of_a_lost_ledger_stays_closed_and_can_be_asked_for_more(fleet: WorkerFleet) -> None:
    fleet.start()
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=6))
        handle.wait(timeout_s=CLOSES_S)
        receipts = fleet.receipts(handle)
        fleet.redis.flushdb()

        again = client.recover(handle.name)

        assert again.progress().state is JobState.CLOSED
        assert fleet.receipts(again) == receipts
        started = time.time()
        assert again.retry(("unscored",)) == 6
        assert again.wait(timeout_s=CLOSES_S).unscored == 6
        assert all(trial.result.started_at.timestamp() > started for trial in again.trials() if trial.result)


def test_worker_asked_to_stop_says_who_and_why_and_its_trials_run_elsewhere(fleet: WorkerFleet) -> None:
    first, second = fleet.start(exec_s=0.5), fleet.start(exec_s=0.5)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=24, concurrency=8))
        until(lambda: fleet.running_on(handle, first) > 0)
        with pytest.raises(UsageError, match="No worker 'box/0' is alive"):
            client.drain("box/0")

        client.drain(fleet.name_of(first), reason="kernel update")

        assert first.wait(timeout=30) == 0
        assert [worker.name for worker in client.workers()] == [fleet.name_of(second)]
        summary = handle.wait(timeout_s=CLOSES_S)
    assert (summary.planned, summary.unscored) == (24, 24)
    assert "was asked to stop by" in fleet.logs()
    assert ": kernel update" in fleet.logs()
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}


def test_health_fails_where_no_worker_takes_work(fleet: WorkerFleet) -> None:
    def health() -> int:
        argv = [sys.executable, "-m", "benchflow_workers", "worker", "--health"]
        return subprocess.run(argv, env=fleet.environ, check=False, timeout=60).returncode

    assert health() == 1
    worker = fleet.start()
    assert health() == 0

    worker.send_signal(signal.SIGSTOP)

    assert health() == 1
    worker.send_signal(signal.SIGCONT)
    until(lambda: health() == 0)
