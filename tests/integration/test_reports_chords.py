"""What others met with chords: parts lost on the way, jobs that grow, clients drowned in results."""

from __future__ import annotations

from typing import Any

import redis

from tests.waiting import until
from tests.worker_fleets import WorkerFleet


def connections(fleet: WorkerFleet) -> dict[str, dict[str, Any]]:
    """Return what Redis knows of its connections, by their ids."""
    return {row["id"]: row for row in fleet.redis.client_list()}


def test_part_is_not_lost_when_redis_stands_still_at_the_commit(fleet: WorkerFleet) -> None:
    """Writes wait for seconds, and connections that wait are cut, again and again."""
    worker = fleet.start(slots=1, exec_s=1.0, BENCHFLOW_LEASE_TTL_S="30")
    control, results = fleet.redis, fleet.folder / "store"
    cut: list[str] = []

    def cut_those_that_wait() -> bool:
        """Begin once the result is stored: what comes next is the commit."""
        if not list(results.glob("*/*/result.json")):
            return False
        for number, row in connections(fleet).items():
            if row["cmd"] in {"evalsha", "eval", "exec"} and "b" in row["flags"]:
                cut.append(number)
                control.client_kill_filter(_id=number)
        return len(cut) >= 6

    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=1))
        until(lambda: fleet.running_on(handle, worker) == 1)

        control.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            until(cut_those_that_wait, what=fleet.logs)
        finally:
            control.execute_command("CLIENT", "UNPAUSE")

        assert fleet.closed(handle).unscored == 1
    assert [receipt.attempts for receipt in fleet.receipts(handle)] == [1]
    assert fleet.logs().count("closed: ") == 1


def test_job_far_larger_than_its_window_loses_nothing_when_a_worker_is_killed(fleet: WorkerFleet) -> None:
    doomed, _ = fleet.start(slots=8, exec_s=0.1), fleet.start(slots=8, exec_s=0.1)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=300, concurrency=24))
        until(lambda: handle.progress().finished > 50 and fleet.running_on(handle, doomed) > 0)

        doomed.kill()
        doomed.wait(timeout=30)

        assert handle.progress().finished < 300
        summary = fleet.closed(handle)
    assert (summary.planned, summary.unscored) == (300, 300)
    assert fleet.logs().count("closed: ") == 1


def test_client_that_does_nothing_while_results_come_in_is_sent_nothing(fleet: WorkerFleet) -> None:
    with fleet.client() as client:
        before = connections(fleet).keys()
        handle = client.submit(fleet.spec(tries=200, concurrency=100))
        own = connections(fleet).keys() - before
        assert own
        fleet.start(slots=8)
        ledger = fleet.ledger
        until(lambda: ledger.progress(handle.name).finished == 200, what=fleet.logs)

        idle = [row for number, row in connections(fleet).items() if number in own]

        assert [(row["sub"], row["psub"], row["omem"]) for row in idle] == [("0", "0", "0")] * len(idle)
        assert idle
        assert handle.progress().finished == 200
        fleet.closed(handle)


def test_nothing_is_left_of_a_chord_once_its_job_is_closed(fleet: WorkerFleet) -> None:
    fleet.start(slots=4)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=40, concurrency=8))
        fleet.closed(handle)
    control: redis.Redis = fleet.redis

    def kept() -> list[bytes]:
        return [key for key in control.scan_iter("celery-taskset-meta-*") if not key.endswith((b".d", b".c"))]

    until(lambda: kept() == [], what=kept)
    until(lambda: list(control.scan_iter("celery-task-meta-*")) == [])
