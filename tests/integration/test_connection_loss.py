"""Redis dies, freezes, drops connections or goes dumb: workers recover by themselves and count every trial once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchflow_client.handle import JobHandle
from tests.brokers import PrivateRedis, link_to, private_redis
from tests.waiting import until
from tests.worker_fleets import WorkerFleet, worker_fleet

TTL_S = 2.0
"""Life of a lease here; a minute in the field."""

DOWN_S = 5.5
"""How long Redis is away: almost three lives of a lease."""

FROZEN_S = 10.0
"""How long Redis holds its connections and is silent, at least."""

RESETS = 20
"""How often every connection is reset, with a trial after each."""

RECOVERS_S = 60.0
"""Seconds from the end of a trouble to the start of a new trial, at most."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivateRedis]:
    with private_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, server: PrivateRedis) -> Iterator[WorkerFleet]:
    with worker_fleet(tmp_path, server.url) as fleet:
        yield fleet


def executions(fleet: WorkerFleet) -> int:
    """Return how many attempts were begun on all workers."""
    return fleet.logs().count(" started\n")


def wait_until_running(fleet: WorkerFleet, handle: JobHandle, count: int) -> None:
    until(lambda: len(fleet.ledger.running(handle.name)) == count, seconds=30, what=fleet.logs)


def pause(seconds: float) -> None:
    """Let a trouble last: its length is what the test is about."""
    threading.Event().wait(seconds)


def test_trials_go_on_while_redis_is_killed_and_comes_back(fleet: WorkerFleet, server: PrivateRedis) -> None:
    """Their leases live on in the file that Redis reads at its start."""
    fleet.start(exec_s=2, BENCHFLOW_LEASE_TTL_S="30")
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=8, concurrency=4))
        wait_until_running(fleet, handle, 4)

        server.kill()
        server.start()
        summary = fleet.closed(handle)

    assert summary.unscored == 8
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}
    assert executions(fleet) == 8
    assert fleet.is_healthy()


def lose_all_leases(
    fleet: WorkerFleet, *, leave: Callable[[], object], come_back: Callable[[], object], away_s: float
) -> JobHandle:
    """Take Redis away from a worker with four trials for longer than their leases, and let the job end."""
    fleet.start(exec_s=6, BENCHFLOW_LEASE_TTL_S=str(TTL_S))
    assert fleet.is_healthy()
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=4, concurrency=4))
        wait_until_running(fleet, handle, 4)

        leave()
        left_at = time.monotonic()
        until(lambda: fleet.logs().count("stopped: lost") == 4, seconds=20, what=fleet.logs)
        assert not fleet.is_healthy()
        pause(left_at + away_s - time.monotonic())
        come_back()
        until(fleet.is_healthy, seconds=RECOVERS_S, what=fleet.logs)
        assert fleet.closed(handle).unscored == 4
    return handle


def test_trials_end_when_redis_is_away_longer_than_a_lease_and_run_again(
    fleet: WorkerFleet, server: PrivateRedis
) -> None:
    """By then another worker might run them: their sandboxes are closed, and nothing is counted twice."""
    handle = lose_all_leases(fleet, leave=server.kill, come_back=server.start, away_s=DOWN_S)

    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {2}
    assert executions(fleet) == 8


def test_new_trial_starts_after_each_reset_of_all_connections(
    fleet: WorkerFleet, server: PrivateRedis
) -> None:
    fleet.start(slots=2)
    with fleet.client() as client:
        for _ in range(RESETS):
            assert server.reset_connections() > 0
            fleet.closed(client.submit(fleet.spec(tries=1)))
        for _ in range(5):
            server.reset_connections()
            pause(0.5)
        fleet.closed(client.submit(fleet.spec(tries=1)))

    assert executions(fleet) == RESETS + 1
    assert fleet.is_healthy()


def test_running_trial_is_not_repeated_after_a_reset(fleet: WorkerFleet, server: PrivateRedis) -> None:
    """A worker that loses its connection puts the messages of its own running trials back: they come twice."""
    fleet.start(exec_s=3)
    fleet.start(exec_s=3)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=8, concurrency=8))
        wait_until_running(fleet, handle, 8)

        server.reset_connections()
        summary = fleet.closed(handle)

    assert summary.unscored == 8
    assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}
    assert executions(fleet) == 8


def test_frozen_redis_makes_workers_unhealthy_and_they_recover(
    fleet: WorkerFleet, server: PrivateRedis
) -> None:
    lose_all_leases(fleet, leave=server.freeze, come_back=server.thaw, away_s=FROZEN_S)

    assert executions(fleet) == 8


def test_worker_connects_anew_when_its_link_has_gone_dumb(fleet: WorkerFleet, server: PrivateRedis) -> None:
    """No packet comes back and no connection is closed, as after a change of a virtual address."""
    with link_to(server.url) as link:
        WorkerFleet(fleet.folder, link.url, processes=fleet.processes).start()
        with fleet.client() as client:
            assert link.go_dumb() > 0
            assert not fleet.is_healthy()

            fleet.closed(client.submit(fleet.spec(tries=1)), within_s=RECOVERS_S)

            until(fleet.is_healthy, seconds=30, what=fleet.logs)


def test_worker_stops_in_time_although_redis_is_frozen(fleet: WorkerFleet, server: PrivateRedis) -> None:
    worker = fleet.start(exec_s=3600)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=4, concurrency=4))
        wait_until_running(fleet, handle, 4)

        server.freeze()
        worker.terminate()

        until(lambda: "stopped: draining" in fleet.logs(), seconds=20, what=fleet.logs)
        server.thaw()
        assert worker.wait(timeout=60) == 0
