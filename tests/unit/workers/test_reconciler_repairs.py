"""Whatever was lost is found again: leases of dead workers, messages, bodies of chords, cancelled trials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from benchflow_client.errors import BrokerError
from benchflow_client.ledger.base import JobState
from benchflow_client.schema.trial import Receipt
from benchflow_workers.leftovers import Leftovers
from benchflow_workers.reconciler import GATHER_GRACE_S, UNCLAIMED_S, Reconciler
from tests.stations import Station
from tests.waiting import until


def reconciler(
    here: Station, *, is_leader: Callable[[], bool] = lambda: True, interval_s: float = 3600.0
) -> Reconciler:
    ledger: Any = here.ledger
    leftovers = Leftovers(None, ledger)
    return Reconciler(
        ledger, here.dispatcher, here.jobs, leftovers, interval_s=interval_s, is_leader=is_leader
    )


def ids(here: Station) -> list[str]:
    return [headers["id"] for headers in here.messages()]


def release(here: Station) -> None:
    here.dispatcher.release(here.header, here.world.plan)


def lose(here: Station, index: int) -> None:
    """Let a worker claim a trial and die."""
    here.memory.claim(here.job, index, owner="dead", ttl_s=10, max_attempts=9)


def finish(here: Station, index: int) -> None:
    fence = here.memory.claim(here.job, index, owner="w", ttl_s=30, max_attempts=9).fence
    here.memory.commit(here.job, Receipt(index, "passed", 1.0, "", 1, 1.0, None, None, ""), fence=fence)


def test_trial_of_a_dead_worker_is_published_again_under_its_own_id(here: Station) -> None:
    release(here)
    first = here.messages()
    lose(here, 0)
    here.skip(11)

    reconciler(here).look()

    again = next(headers for headers in here.messages() if headers["group_index"] == 0)
    assert again["id"] == f"{here.job}.fix-build.solver.1"
    assert again["group_index"] == 0
    assert [again[key] for key in ("id", "group", "group_index")] == [
        first[0][key] for key in ("id", "group", "group_index")
    ]


def test_trial_whose_lease_lives_is_left_alone(here: Station) -> None:
    release(here)
    here.messages()
    lose(here, 0)
    here.skip(9)

    reconciler(here).look()

    assert f"{here.job}.fix-build.solver.1" not in ids(here)


def test_lost_message_is_published_again_after_a_while(here: Station) -> None:
    release(here)
    here.messages()

    here.skip(UNCLAIMED_S - 1)
    reconciler(here).look()
    assert ids(here) == []
    here.skip(2)
    reconciler(here).look()

    assert ids(here) == [f"{here.job}.fix-build.solver.{number}" for number in (1, 2)]
    reconciler(here).look()
    assert ids(here) == []


def test_message_that_still_waits_is_not_published_twice(here: Station) -> None:
    """A queue may be long for hours; only an empty one says that messages were lost."""
    release(here)
    here.skip(24 * 3600)

    reconciler(here).look()

    assert len(ids(here)) == 2


def test_a_lost_message_is_missed_although_others_wait(here: Station) -> None:
    release(here)
    taken, _ = here.messages()
    here.dispatcher.publish(here.header, here.world.plan, [taken["group_index"]])
    here.skip(UNCLAIMED_S + 1)
    watcher = reconciler(here)

    watcher.look()
    watcher.look()

    assert sorted(set(ids(here))) == [f"{here.job}.fix-build.solver.{number}" for number in (1, 2)]


def test_job_whose_client_died_before_it_published_starts(here: Station) -> None:
    reconciler(here).look()

    assert len(ids(here)) == 2


def test_finished_job_without_a_summary_is_gathered_after_a_while(here: Station) -> None:
    watcher = reconciler(here)
    finish(here, 0)
    watcher.look(now=0.0)
    finish(here, 1)
    watcher.look(now=GATHER_GRACE_S + 60)
    assert here.messages("control") == []

    watcher.look(now=2 * GATHER_GRACE_S + 61)

    (body,) = here.messages("control")
    assert (body["id"], body["task"]) == (f"{here.job}.summary", "summary")


@pytest.mark.parametrize("ahead_s", [-86_400.0, 86_400.0])
def test_chord_has_its_time_to_gather_whatever_the_time_is_here(here: Station, ahead_s: float) -> None:
    """The ledger's clock and this host's may be a day apart."""
    here.skip(ahead_s)
    finish(here, 0)
    finish(here, 1)

    reconciler(here).look()

    assert here.messages("control") == []


def test_job_that_runs_again_has_its_time_to_gather_again(here: Station) -> None:
    watcher = reconciler(here)
    finish(here, 0)
    finish(here, 1)
    watcher.look(now=0.0)
    here.memory.close_job(here.job)
    watcher.look(now=1.0)
    here.memory.reopen(here.job, [1], group_id="again")
    finish(here, 1)

    watcher.look(now=GATHER_GRACE_S + 2)

    assert here.messages("control") == []


def test_closed_job_is_left_alone(here: Station) -> None:
    here.skip(-3600)
    finish(here, 0)
    finish(here, 1)
    here.memory.close_job(here.job)

    reconciler(here).look()

    assert here.messages("control") == []


def test_cancelled_job_is_swept_and_gathered(here: Station) -> None:
    release(here)
    here.messages()
    here.memory.cancel(here.job, by="ana", reason="")

    reconciler(here).look()

    progress = here.memory.progress(here.job)
    assert (progress.outcomes["cancelled"], progress.waiting) == (2, 0)
    assert here.messages("control") != []


def test_trial_that_runs_in_a_cancelled_job_is_not_swept_until_its_worker_is_dead(here: Station) -> None:
    release(here)
    here.messages()
    lose(here, 0)
    here.memory.cancel(here.job, by="ana", reason="")

    reconciler(here).look()
    assert here.memory.progress(here.job).outcomes["cancelled"] == 1
    here.skip(31)
    reconciler(here).look()
    reconciler(here).look()

    assert here.memory.progress(here.job).outcomes["cancelled"] == 2


def test_two_reconcilers_at_once_do_no_harm(make: Any) -> None:
    here = make(tries=6, concurrency=6)
    release(here)
    here.messages()
    for index in range(3):
        lose(here, index)
    here.skip(61)
    start = threading.Barrier(2)

    def look() -> None:
        start.wait(10)
        reconciler(here).look()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)

    found = ids(here)
    assert sorted(set(found)) == [f"{here.job}.fix-build.solver.{number}" for number in range(1, 7)]
    for message in found:
        here.take(int(message.rpartition(".")[2]) - 1)
    assert [receipt.trial_index for receipt in here.memory.receipts(here.job)] == [0, 1, 2, 3, 4, 5]


def test_job_that_cannot_be_repaired_does_not_keep_others_from_it(
    here: Station, caplog: pytest.LogCaptureFixture
) -> None:
    here.memory.open_job(type(here.header)("broken", 1, 1, 1, "ana", "q", "g", "b", "t", 0.0))

    with caplog.at_level(logging.WARNING):
        reconciler(here).look()

    assert len(ids(here)) == 2
    assert "broken" in caplog.text


def test_only_the_leader_looks(here: Station) -> None:
    asked = threading.Event()

    def is_leader() -> bool:
        asked.set()
        return False

    follower = reconciler(here, is_leader=is_leader, interval_s=0.01)
    follower.start()
    try:
        assert asked.wait(10)
        assert "jobs" not in here.ledger.calls
    finally:
        follower.close()


def test_broker_that_is_away_for_a_moment_does_not_end_the_repairs(here: Station) -> None:
    answers = iter([BrokerError("away"), True, True])

    def is_leader() -> bool:
        answer = next(answers, True)
        if isinstance(answer, BrokerError):
            raise answer
        return bool(answer)

    repairs = reconciler(here, is_leader=is_leader, interval_s=0.01)
    repairs.start()
    try:
        until(lambda: here.memory.progress(here.job).released == 2)
    finally:
        repairs.close()
        repairs.close()
    assert here.memory.progress(here.job).state is JobState.OPEN
