"""What others met with messages that come again: killers, counters, hoarders, drifting queues, leftovers."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchflow_client.ledger.connection import RedisConnection
from benchflow_workers.context import WorkerContext, compose
from benchflow_workers.leftovers import Leftovers
from tests.fleets import recorded_events
from tests.waiting import until
from tests.worker_fleets import QUEUE, WorkerFleet

HOUR_S = 3600.0


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(timeout=30)


def test_trial_that_kills_its_worker_three_times_is_an_error_that_says_so(fleet: WorkerFleet) -> None:
    for _ in range(4):
        fleet.start(slots=1, exec_s=HOUR_S)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=1, max_attempts=3))

        for _ in range(3):
            kill(fleet.owner_of(handle))

        summary = fleet.closed(handle)
        (trial,) = handle.trials()
    assert (summary.planned, summary.errored) == (1, 1)
    (receipt,) = fleet.receipts(handle)
    assert (receipt.code, receipt.attempts) == ("worker.lost", 3)
    assert trial.result is not None
    assert "died in the last of 3 attempts" in trial.result.failures[0].message


def test_attempts_are_counted_by_trial_whatever_message_brings_it(fleet: WorkerFleet) -> None:
    """A kill costs an attempt, a worker that is asked to stop does not; each brings a message of its own."""
    for _ in range(2):
        fleet.start(slots=1, exec_s=HOUR_S)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=1, max_attempts=3))
        kill(fleet.owner_of(handle))
        stopped = fleet.owner_of(handle)
        fleet.start(slots=1)

        stopped.send_signal(signal.SIGTERM)

        assert stopped.wait(timeout=30) == 0
        assert fleet.closed(handle).unscored == 1
    assert [receipt.attempts for receipt in fleet.receipts(handle)] == [2]


def test_free_worker_gets_the_trial_that_a_busy_one_cannot_run(fleet: WorkerFleet) -> None:
    busy = fleet.start(slots=1, exec_s=HOUR_S)
    with fleet.client() as client:
        long = client.submit(fleet.spec(tries=1))
        until(lambda: fleet.running_on(long, busy) == 1)
        short = client.submit(fleet.spec(tries=3, concurrency=3))
        free = fleet.start(slots=1)

        assert fleet.closed(short, within_s=20).unscored == 3

        owners = {trial.result.worker for trial in short.trials() if trial.result is not None}
    assert owners == {fleet.name_of(free)}
    assert fleet.running_on(long, busy) == 1


def test_workers_take_no_more_messages_than_they_have_slots(fleet: WorkerFleet) -> None:
    """Else a queue looks empty while trials wait in the memory of busy workers."""
    slots, seen = 3, list[int]()
    fleet.start(slots=slots, exec_s=0.02)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=300, concurrency=300))

        def is_over() -> bool:
            seen.append(fleet.redis.hlen("unacked"))
            return handle.progress().finished == 300

        until(is_over, what=fleet.logs)
        fleet.closed(handle)
        until(lambda: fleet.redis.hlen("unacked") == 0)
    assert 0 < max(seen) <= slots
    assert len(seen) > 20


def test_secret_is_in_no_message_event_or_log_of_a_trial_that_runs_again(fleet: WorkerFleet) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    script = fleet.folder / "agent.sh"
    script.write_text("#!/bin/sh\necho done\n")
    first = fleet.start(slots=1, exec_s=HOUR_S, CANARY_NAME=canary)

    with fleet.client() as client, recorded_events(fleet.url) as events:
        handle = client.submit(fleet.spec(agent=[str(script)], agent_env=["CANARY_NAME"], tries=1))
        until(lambda: fleet.running_on(handle, first) == 1)
        kept = dict(fleet.values())
        kill(first)
        fleet.start(slots=1, exec_s=0.5, CANARY_NAME=canary)
        fleet.closed(handle)
        kept |= dict(fleet.values())
        until(lambda: any(event["type"] == "task-succeeded" for event in events))

    assert fleet.receipts(handle)[0].attempts == 2
    kept |= {f"event {number}": json.dumps(event).encode() for number, event in enumerate(events)}
    files = (path for path in fleet.folder.rglob("*") if path.is_file())
    kept |= {str(path): path.read_bytes() for path in files}
    assert [place for place, content in kept.items() if canary.encode() in content] == []


def test_what_killed_workers_had_taken_is_swept_from_the_broker(fleet: WorkerFleet) -> None:
    doomed = fleet.start(slots=4, exec_s=HOUR_S)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=8, concurrency=4))
        until(lambda: fleet.running_on(handle, doomed) == 4)
        kill(doomed)
        left = set(fleet.redis.hkeys("unacked"))
        assert len(left) == 4
        sweeper = Leftovers(RedisConnection.at(fleet.url), fleet.ledger, grace_s=0.5)
        sweeper.sweep()
        assert set(fleet.redis.hkeys("unacked")) == left

        fleet.start(slots=4, exec_s=0.2)
        until(lambda: sweeper.sweep() >= 0 and not left & set(fleet.redis.hkeys("unacked")))

        assert fleet.closed(handle).unscored == 8
        until(lambda: sweeper.sweep() == 0 and not fleet.redis.exists("unacked", "unacked_index"))
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1, 2}


@pytest.fixture
def pair(fleet: WorkerFleet) -> Iterator[tuple[WorkerContext, WorkerContext]]:
    """What two workers are made of; neither takes messages."""
    with ExitStack() as stack:
        made = [compose(fleet.environ) for _ in range(2)]
        for here in made:
            stack.callback(here.app.close)
            stack.callback(here.keeper.close)
        yield made[0], made[1]


def test_two_reconcilers_at_once_publish_a_lost_trial_once(
    fleet: WorkerFleet, pair: tuple[WorkerContext, WorkerContext]
) -> None:
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=8, concurrency=8))
        for _ in range(5):
            indices = range(len(lost(fleet, handle.name)))
            barrier = threading.Barrier(2)

            def look(here: WorkerContext, barrier: threading.Barrier = barrier) -> None:
                barrier.wait(timeout=10)
                here.reconciler.look()

            threads = [threading.Thread(target=look, args=(here,)) for here in pair]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=30)

            published = [json.loads(text)["headers"]["id"] for text in fleet.redis.lrange(QUEUE, 0, -1)]
            assert sorted(published) == sorted(handle.results().plan.trial(i).id for i in indices)


def lost(fleet: WorkerFleet, job: str) -> list[int]:
    """Let a worker claim every trial that was released, and die."""
    fleet.redis.delete(QUEUE)
    for index in range(8):
        fleet.ledger.claim(job, index, owner="dead", ttl_s=0.05, max_attempts=99)
    running = fleet.ledger.running(job)
    assert len(running) == 8
    until(lambda: max(trial.lease_until for trial in running) < time.time())
    return [trial.index for trial in running]
