"""Leases are renewed until they are lost, cancelled or given up; each reason reaches the trial once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_workers.lease import Lease, LeaseKeeper, Stop
from tests.stations import FlakyLedger
from tests.waiting import until

TTL_S = 0.4
HEADER = JobHeader("j", 3, 3, 3, "ana", "local", "g", "b", "t", 0.0)


@pytest.fixture
def ledger() -> FlakyLedger:
    memory = MemoryLedger()
    memory.open_job(HEADER)
    return FlakyLedger(memory)


@pytest.fixture
def keeper(ledger: FlakyLedger) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(ledger, ttl_s=TTL_S)  # type: ignore[arg-type]
    yield keeper
    keeper.close()


def claim(ledger: FlakyLedger, index: int = 0) -> int:
    return ledger.inner.claim("j", index, owner="w", ttl_s=TTL_S, max_attempts=9).fence


def ignore(phase: str) -> None:
    del phase


def test_lease_outlives_its_time_while_it_is_held(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    fence = claim(ledger)

    with keeper.hold("j", 0, fence, on_phase=ignore) as lease:
        until(lambda: ledger.calls.count("renew") >= 8)

        assert ledger.inner.is_live("j", 0, fence=fence)
        assert lease.stop is None
        assert keeper.held == 1
    assert keeper.held == 0


def test_lease_that_is_released_is_not_renewed_any_more(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    fence = claim(ledger)
    with keeper.hold("j", 0, fence, on_phase=ignore):
        pass

    until(lambda: not ledger.inner.is_live("j", 0, fence=fence))


def test_lease_that_went_to_somebody_else_is_lost(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    fence = claim(ledger)

    with keeper.hold("j", 0, fence + 1, on_phase=ignore) as lease:
        until(lambda: lease.stop is Stop.LOST)


def test_cancelled_job_tells_its_trials_and_keeps_their_leases(
    ledger: FlakyLedger, keeper: LeaseKeeper
) -> None:
    fence = claim(ledger)

    with keeper.hold("j", 0, fence, on_phase=ignore) as lease:
        ledger.inner.cancel("j", by="ana", reason="")
        until(lambda: lease.stop is Stop.CANCELLED)
        seen = ledger.calls.count("renew")
        until(lambda: ledger.calls.count("renew") > seen + 4)

        assert ledger.inner.is_live("j", 0, fence=fence)
        assert lease.stop is Stop.CANCELLED


def test_ledger_that_stays_silent_longer_than_the_lease_ends_it(
    ledger: FlakyLedger, keeper: LeaseKeeper
) -> None:
    """By then somebody else may run the trial, and this worker cannot know."""
    with keeper.hold("j", 0, claim(ledger), on_phase=ignore) as lease:
        ledger.is_down = True

        until(lambda: lease.stop is Stop.LOST)


def test_lease_counts_from_before_its_claim_was_sent(ledger: FlakyLedger) -> None:
    """The ledger counts from when the claim came, which may be long before its answer did."""
    keeper = LeaseKeeper(ledger, ttl_s=60.0)  # type: ignore[arg-type]
    asked_at = time.monotonic() - 61.0
    try:
        with (
            keeper.hold("j", 0, claim(ledger), on_phase=ignore, asked_at=asked_at) as late,
            keeper.hold("j", 1, claim(ledger, 1), on_phase=ignore) as fresh,
        ):
            ledger.is_down = True
            keeper.note_phase(late, "agent")

            until(lambda: late.stop is Stop.LOST)
            assert fresh.stop is None
    finally:
        keeper.close()


def test_ledger_that_comes_back_in_time_costs_nothing(ledger: FlakyLedger) -> None:
    keeper = LeaseKeeper(ledger, ttl_s=4.0)  # type: ignore[arg-type]
    fence = ledger.inner.claim("j", 0, owner="w", ttl_s=4.0, max_attempts=9).fence
    try:
        with keeper.hold("j", 0, fence, on_phase=ignore) as lease:
            ledger.is_down = True
            until(lambda: ledger.calls.count("renew") >= 1)
            ledger.is_down = False
            until(lambda: ledger.calls.count("renew") >= 3)

            assert lease.stop is None
            assert ledger.inner.is_live("j", 0, fence=fence)
    finally:
        keeper.close()


def test_job_that_was_forgotten_does_not_stop_the_keeper(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    """One job's end must not cost the leases of all others."""
    ledger.inner.open_job(replace(HEADER, job="k"))
    fence = ledger.inner.claim("k", 0, owner="w", ttl_s=TTL_S, max_attempts=9).fence

    with (
        keeper.hold("j", 0, claim(ledger), on_phase=ignore) as gone,
        keeper.hold("k", 0, fence, on_phase=ignore) as kept,
    ):
        ledger.inner.forget_job("j")
        keeper.note_phase(gone, "agent")
        until(lambda: gone.stop is Stop.LOST)
        seen = ledger.calls.count("renew")
        until(lambda: ledger.calls.count("renew") > seen + 4)

        assert kept.stop is None
        assert ledger.inner.is_live("k", 0, fence=fence)


def test_drain_reaches_trials_that_run_and_those_to_come(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    with keeper.hold("j", 0, claim(ledger), on_phase=ignore) as before:
        keeper.drain()

        with keeper.hold("j", 1, claim(ledger, 1), on_phase=ignore) as after:
            assert before.stop is Stop.DRAINING
            assert after.stop is Stop.DRAINING


def test_first_reason_stands_and_is_told_once() -> None:
    lease, told = Lease("j", 0, 1, on_phase=ignore), list[str]()
    lease.on_stop(lambda: told.append("early"))

    lease.end(Stop.CANCELLED)
    lease.end(Stop.LOST)
    lease.on_stop(lambda: told.append("late"))

    assert lease.stop is Stop.CANCELLED
    assert told == ["early", "late"]


def test_phases_that_do_not_last_are_left_out(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    shown: list[str] = []

    with keeper.hold("j", 0, claim(ledger), on_phase=shown.append) as lease:
        for phase in ("preparing", "building", "setup", "agent"):
            keeper.note_phase(lease, phase)
        until(lambda: shown)

        assert shown == ["agent"]
        assert ledger.inner.running("j")[0].phase == "agent"
        assert ledger.calls.count("set_phase") == 1


def test_phases_that_last_are_passed_on_from_another_thread(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    shown: list[tuple[str, str]] = []

    def on_phase(phase: str) -> None:
        shown.append((phase, threading.current_thread().name))

    with keeper.hold("j", 0, claim(ledger), on_phase=on_phase) as lease:
        keeper.note_phase(lease, "agent")
        until(lambda: len(shown) == 1)
        keeper.note_phase(lease, "verifying")
        until(lambda: len(shown) == 2)

    assert shown == [("agent", "phases"), ("verifying", "phases")]


def test_busy_phases_do_not_keep_leases_from_being_renewed(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    fence = claim(ledger)

    with keeper.hold("j", 0, fence, on_phase=ignore) as lease:
        for number in range(200):
            keeper.note_phase(lease, f"phase-{number}")
            if ledger.calls.count("renew") >= 5:
                break
            threading.Event().wait(0.01)

        assert ledger.inner.is_live("j", 0, fence=fence)
        assert lease.stop is None


def test_listener_that_waits_for_a_broker_keeps_no_lease_waiting(ledger: FlakyLedger) -> None:
    keeper = LeaseKeeper(ledger, ttl_s=TTL_S)  # type: ignore[arg-type]
    is_told, may_go = threading.Event(), threading.Event()

    def wait_for_the_broker(phase: str) -> None:
        is_told.set()
        may_go.wait(30)

    fence = claim(ledger)
    with keeper.hold("j", 0, fence, on_phase=wait_for_the_broker) as lease:
        keeper.note_phase(lease, "agent")
        assert is_told.wait(10)
        renewals = ledger.calls.count("renew")
        until(lambda: ledger.calls.count("renew") >= renewals + 8)

        assert ledger.inner.is_live("j", 0, fence=fence)
        ledger.is_down = True
        until(lambda: lease.stop is Stop.LOST)
    keeper.close()
    may_go.set()


def test_phases_that_nobody_hears_are_dropped_in_the_end(ledger: FlakyLedger, keeper: LeaseKeeper) -> None:
    is_told, may_go, shown = threading.Event(), threading.Event(), list[str]()

    def wait_for_the_broker(phase: str) -> None:
        shown.append(phase)
        is_told.set()
        may_go.wait(30)

    with keeper.hold("j", 0, claim(ledger), on_phase=wait_for_the_broker) as lease:
        keeper.note_phase(lease, "agent")
        assert is_told.wait(10)
        while not keeper._shown.full():
            keeper._shown.put_nowait((ignore, "earlier"))
        keeper.note_phase(lease, "verifying")
        until(lambda: ledger.inner.running("j")[0].phase == "verifying")
        may_go.set()

        assert shown == ["agent"]
        assert lease.stop is None


def test_keeper_ends_at_once_and_can_be_closed_twice(ledger: FlakyLedger) -> None:
    before = threading.active_count()
    keeper = LeaseKeeper(ledger, ttl_s=3600)  # type: ignore[arg-type]
    assert threading.active_count() == before + 2

    keeper.close()
    keeper.close()

    assert threading.active_count() == before
