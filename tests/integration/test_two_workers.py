"""Promises one and two on real processes: no client is needed, no trial is lost, none is counted twice."""

from __future__ import annotations

import signal
import time
import uuid

from benchflow_client.broker import make_app, queue_depth
from benchflow_client.ledger.base import JobState
from tests.brokers import either_broker, repeat_messages
from tests.waiting import until
from tests.worker_fleets import CLOSES_S, QUEUE, WorkerFleet


@either_broker
def test_two_workers_share_a_job_and_count_every_trial_once(fleet: WorkerFleet) -> None:
    first, second = fleet.start(exec_s=0.1), fleet.start(exec_s=0.1)

    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=40, concurrency=8))
        summary = fleet.closed(handle)
        results = list(handle.trials())

    assert (summary.planned, summary.unscored) == (40, 40)
    assert {trial.result.worker for trial in results if trial.result is not None} == {
        fleet.name_of(first),
        fleet.name_of(second),
    }
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}


@either_broker
def test_job_outlives_a_worker_that_is_killed(fleet: WorkerFleet) -> None:
    doomed, _ = fleet.start(exec_s=0.5), fleet.start(exec_s=0.5)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=24, concurrency=8))
        until(lambda: fleet.running_on(handle, doomed) >= 2, seconds=30)

        doomed.kill()
        doomed.wait(timeout=10)
        killed_at = time.monotonic()
        orphans = {
            trial.index for trial in fleet.ledger.running(handle.name) if trial.owner == fleet.name_of(doomed)
        }
        summary = fleet.closed(handle)

    assert summary.unscored == 24
    assert orphans
    attempts = {receipt.trial_index: receipt.attempts for receipt in fleet.receipts(handle)}
    assert {index for index, number in attempts.items() if number > 1} == orphans
    assert time.monotonic() - killed_at < CLOSES_S


@either_broker
def test_worker_that_is_told_to_stop_gives_its_trials_back_within_seconds(fleet: WorkerFleet) -> None:
    """Its trials would take an hour; another worker runs them at once, and it costs them no attempt."""
    leaving = fleet.start(exec_s=3600)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=4, concurrency=4))
        until(lambda: fleet.running_on(handle, leaving) == 4, seconds=30)
        fleet.start()

        leaving.send_signal(signal.SIGTERM)

        assert leaving.wait(timeout=30) == 0
        summary = fleet.closed(handle)
    assert summary.unscored == 4
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}
    assert fleet.name_of(leaving) not in {worker.name for worker in fleet.ledger.workers()}


@either_broker
def test_job_can_be_cancelled_by_another_client(fleet: WorkerFleet) -> None:
    fleet.start(exec_s=3600)
    with fleet.client() as client:
        name = client.submit(fleet.spec(tries=20, concurrency=6)).name
    until(lambda: len(fleet.ledger.running(name)) == 4, seconds=30)

    with fleet.client() as other:
        handle = other.job(name)
        assert handle.cancel(by="li", reason="wrong model")
        summary = fleet.closed(handle, within_s=60)

    assert summary.cancelled == 20
    assert handle.progress().cancelled_by == "li"


@either_broker
def test_job_submitted_before_any_worker_exists_is_picked_up(fleet: WorkerFleet) -> None:
    """The client is gone when the first worker comes."""
    with fleet.client() as client:
        name = client.submit(fleet.spec(tries=6, concurrency=3)).name

    fleet.start()

    with fleet.client() as client:
        assert fleet.closed(client.job(name)).unscored == 6


@either_broker
def test_message_that_comes_three_times_is_counted_once(fleet: WorkerFleet) -> None:
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=12, concurrency=12))
        assert repeat_messages(fleet.broker or fleet.url, ledger_url=fleet.url, queue=QUEUE, times=2) == 36

        fleet.start(exec_s=0.05)
        fleet.start(exec_s=0.05)
        summary = fleet.closed(handle)

        with make_app(fleet.broker or fleet.url, ledger_url=fleet.url) as app:
            until(lambda: queue_depth(app, QUEUE) == 0 and fleet.redis.hlen("unacked") == 0, seconds=30)

    assert summary.unscored == 12
    assert len(fleet.receipts(handle)) == 12
    assert handle.progress().state is JobState.CLOSED


def test_job_whose_chord_is_lost_is_gathered_by_a_worker(fleet: WorkerFleet) -> None:
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=6, concurrency=6))
        chords = list(fleet.redis.scan_iter("celery-taskset-meta-*"))
        assert chords
        fleet.redis.delete(*chords)

        fleet.start()

        assert fleet.closed(handle).unscored == 6


def test_thousand_trials_are_a_few_small_messages_and_open_no_channel(fleet: WorkerFleet) -> None:
    """However large the job, the broker holds what its workers can take soon: 8 slots, 10 messages."""
    fleet.start(exec_s=3600, slots=8)
    with fleet.client() as client:
        client.submit(fleet.spec(tries=1000, concurrency=1000))

        until(lambda: (fleet.redis.llen(QUEUE), fleet.redis.hlen("unacked")) == (2, 8), seconds=30)
        channels = [channel.decode() for channel in fleet.redis.pubsub_channels()]
        largest = max(map(len, fleet.redis.lrange(QUEUE, 0, -1)))

    assert [channel for channel in channels if "celery-task-meta" in channel] == []
    assert len(channels) < 10
    assert largest < 4096


def test_secret_given_by_name_is_nowhere_in_redis_or_the_store(fleet: WorkerFleet) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    script = fleet.folder / "agent.sh"
    script.write_text("#!/bin/sh\necho done\n")
    spec = fleet.spec(agent=[str(script)], agent_env=["CANARY_NAME"], tries=6, concurrency=3)
    fleet.start(exec_s=1.0, CANARY_NAME=canary)

    with fleet.client() as client:
        handle = client.submit(spec)
        until(lambda: len(fleet.ledger.running(handle.name)) == 3, seconds=30)
        while_it_runs = dict(fleet.values())
        fleet.closed(handle)
    afterwards = dict(fleet.values())
    stored = {path: path.read_bytes() for path in (fleet.folder / "store").rglob("*") if path.is_file()}

    assert any("CANARY_NAME" in text.decode(errors="replace") for text in stored.values())
    found = {
        str(place): content
        for place, content in [*while_it_runs.items(), *afterwards.items(), *stored.items()]
        if canary.encode() in content
    }
    assert found == {}
    assert canary not in fleet.logs()
