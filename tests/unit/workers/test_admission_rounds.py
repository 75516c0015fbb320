"""Rounds of admission: several jobs on one queue, and the thread that looks when time admits more."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchflow_client.broker import CONTROL_QUEUE
from benchflow_client.dispatch import job_header
from benchflow_client.ledger.admission import Budget, Limit
from benchflow_client.ledger.base import JobHeader, JobState, WorkerRecord
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Receipt
from benchflow_client.store.documents import write_document
from benchflow_client.store.layout import plan_key
from benchflow_workers.admission import Admitter
from tests.stations import Station
from tests.waiting import until


@pytest.fixture
def admitter(here: Station) -> Iterator[Admitter]:
    made = Admitter(here.dispatcher, here.jobs)
    yield made
    made.close()


def more(here: Station, name: str, *, tries: int = 4, **header: object) -> JobHeader:
    """Open another job on the station's queue."""
    spec = here.world.plan.spec.model_copy(update={"tries": tries})
    plan: Plan = here.world.plan.model_copy(update={"job": name, "spec": spec})
    write_document(here.world.store, plan_key(name), plan)
    here.memory.open_job(replace(job_header(plan, owner="li"), **header))  # type: ignore[arg-type]
    return here.memory.header(name)


def jobs_of(here: Station) -> Counter[str]:
    """Take the messages of the queue and return how many there are of each job."""
    return Counter(message["id"].partition(".")[0] for message in here.messages())


def finish(
    here: Station, job: str, index: int, *, usd: float | None = None, is_permanent: bool = False
) -> None:
    fence = here.memory.claim(job, index, owner="w", ttl_s=30, max_attempts=3).fence
    outcome, code = ("errored", "agent.env_missing") if is_permanent else ("failed", "")
    receipt = Receipt(index, outcome, None if is_permanent else 0.0, code, 1, 1.0, usd, None, "")
    assert here.memory.commit(job, receipt, fence=fence, is_permanent=is_permanent).receipt == receipt


def test_jobs_of_a_queue_are_published_each_under_its_own_chord(here: Station) -> None:
    other = more(here, "quick-heron-1")

    count, wait_s = here.dispatcher.admit(here.header.queue, here.jobs)

    assert (count, wait_s) == (6, None)
    chords = {(message["id"].partition(".")[0], message["group"]) for message in here.messages()}
    assert chords == {(here.job, here.header.group_id), (other.job, other.group_id)}


def test_slots_of_live_workers_make_the_room_of_a_queue(here: Station) -> None:
    more(here, "quick-heron-1", tries=40, concurrency=40)
    queues = (here.header.queue,)
    for name, state in (("box/1", "healthy"), ("box/2", "draining")):
        here.memory.announce(WorkerRecord(name, queues, (), 4, 0, state, 1.0), ttl_s=60)
    here.memory.announce(WorkerRecord("box/3", ("elsewhere",), (), 9, 0, "healthy", 1.0), ttl_s=60)

    assert here.dispatcher.admit(here.header.queue, here.jobs)[0] == 5


def test_reopened_job_is_read_anew_before_its_trials_are_published(here: Station) -> None:
    here.dispatcher.admit(here.header.queue, here.jobs)
    assert {message["group"] for message in here.messages()} == {here.header.group_id}
    for index in range(here.header.total):
        finish(here, here.job, index)
    here.memory.close_job(here.job)
    assert here.memory.reopen(here.job, [1], group_id="anew") == 1

    here.dispatcher.admit(here.header.queue, here.jobs)

    (message,) = here.messages()
    assert (message["id"], message["group"]) == (here.world.plan.trial(1).id, "anew")


def test_job_that_stops_by_its_budget_is_swept_and_gathered(here: Station) -> None:
    more(here, "quick-heron-1", budget=Budget(cost_usd=1.0))
    here.dispatcher.admit(here.header.queue, here.jobs)
    finish(here, "quick-heron-1", 0, usd=2.0)

    here.dispatcher.admit(here.header.queue, here.jobs)

    progress = here.memory.progress("quick-heron-1")
    assert (progress.state, progress.outcomes["not_started"], progress.waiting) == (JobState.STOPPING, 3, 0)
    assert [message["id"] for message in here.messages(CONTROL_QUEUE)] == ["quick-heron-1.summary"]
    assert here.memory.progress(here.job).state is JobState.OPEN


def test_one_job_alone_leaves_the_places_of_the_others(here: Station) -> None:
    other = more(here, "quick-heron-1", tries=40, concurrency=40)
    _, plan = here.jobs.get(other.job)
    here.memory.announce(WorkerRecord("box/1", (other.queue,), (), 3, 0, "healthy", 1.0), ttl_s=60)

    assert here.dispatcher.release(other, plan) == 2

    assert jobs_of(here) == {other.job: 2}


def test_queues_of_a_worker_that_joins_are_looked_at_at_once(here: Station, admitter: Admitter) -> None:
    admitter.start([here.header.queue, "empty"])

    until(lambda: here.memory.progress(here.job).released == 2, seconds=10)


def test_rate_lets_the_next_start_as_soon_as_its_time_has_come(here: Station, admitter: Admitter) -> None:
    """Nothing ends and nobody asks again: the thread wakes by the time it was told."""
    here.memory.set_limit(f"sandbox:{here.header.queue}", Limit(starts_per_s=4.0))
    more(here, "quick-heron-1", tries=6, concurrency=6)
    admitter.start([here.header.queue])
    until(lambda: here.memory.in_flight()[f"sandbox:{here.header.queue}"] >= 4, seconds=10)

    until(lambda: here.memory.in_flight()[f"sandbox:{here.header.queue}"] == 8, seconds=10)

    assert here.ledger.calls.count("admit") >= 4


def test_ending_trial_tells_the_thread_when_to_look_again(here: Station, admitter: Admitter) -> None:
    here.memory.set_limit(f"sandbox:{here.header.queue}", Limit(starts_per_s=1.0))
    admitter.start([])

    assert admitter.admit(here.header.queue) == 1

    until(lambda: here.memory.progress(here.job).released == 2, seconds=10)


def test_broker_that_is_away_does_not_end_the_thread(
    here: Station, admitter: Admitter, caplog: pytest.LogCaptureFixture
) -> None:
    here.ledger.is_down = True
    admitter.start([here.header.queue])
    until(lambda: "no admission this time" in caplog.text, seconds=10)
    assert here.memory.progress(here.job).released == 0

    here.ledger.is_down = False

    until(lambda: here.memory.progress(here.job).released == 2, seconds=10)


def test_closed_admitter_looks_no_more(here: Station) -> None:
    admitter, before = Admitter(here.dispatcher, here.jobs), set(threading.enumerate())
    here.memory.set_limit(f"sandbox:{here.header.queue}", Limit(starts_per_s=0.01))
    admitter.start([])
    (thread,) = set(threading.enumerate()) - before
    admitter.admit(here.header.queue)

    admitter.close()
    admitter.close()

    thread.join(timeout=10)
    assert not thread.is_alive()
    assert here.ledger.calls.count("admit") == 1
