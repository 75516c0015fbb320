"""How often models may be asked, over every implementation of the ledger; time is moved by the tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from benchflow_client.ledger.admission import Limit, Room
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.rates import CLOSED, Known, ModelCall, Rates, Turn, Use
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_rates import RedisRates
from tests.ledgers import header
from tests.timed_ledgers import TimedLedger, TimedRedis

PROVIDER, MODEL, KEY = "provider:x", "model:x/large", "key:X_API_KEY"
CALL = ModelCall((PROVIDER, MODEL, KEY), "x", 100)
GO = Turn()


@pytest.fixture(params=["memory", "redis"])
def fleet(request: pytest.FixtureRequest) -> Iterator[TimedLedger]:
    if request.param == "memory":
        yield TimedLedger()
        return
    client = TimedRedis.from_url(request.getfixturevalue("redis_url"), decode_responses=True)
    yield TimedLedger(client)
    client.close()


def starts(fleet: TimedLedger, calls: list[ModelCall], *, seconds: float) -> list[tuple[float, int]]:
    """Let calls wait for their turns, all from now on, each as it is told.

    Returns:
        When each started, in seconds from now, and its tokens.
    """
    begun, due = fleet.now, [(fleet.now, number, call, False) for number, call in enumerate(calls)]
    started: list[tuple[float, int]] = []
    while due and min(due)[0] < begun + seconds:
        at, number, call, is_kept = min(due, key=lambda one: one[:2])
        due.remove((at, number, call, is_kept))
        fleet.advance(max(0.0, at - fleet.now))
        turn = fleet.rates.take(call, within_s=seconds, is_kept=is_kept)
        if turn == GO:
            started.append((fleet.now - begun, call.tokens))
        elif not turn.is_refused:
            due.append((fleet.now + turn.wait_s, number, call, turn.is_kept))
    return started


def most_in_a_minute(started: list[tuple[float, int]]) -> int:
    moments = [at for at, _ in started]
    return max(sum(first <= at < first + 60 for at in moments) for first in moments)


def test_without_a_limit_calls_go_and_nothing_is_counted(fleet: TimedLedger) -> None:
    assert [fleet.rates.take(CALL, within_s=0) for _ in range(50)] == [GO] * 50
    assert fleet.rates.known() == Known()
    assert fleet.rates.used() == {}


def test_what_is_known_are_the_limits_that_calls_count_in(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(live=2, tokens_per_min=1e9))
    fleet.ledger.set_limit(KEY, Limit(requests_per_min=30))
    fleet.ledger.set_limit(PROVIDER, Limit(live=5))

    assert fleet.rates.known().limits == {
        KEY: Limit(requests_per_min=30),
        MODEL: Limit(live=2, tokens_per_min=1e9),
    }


def test_calls_start_evenly_after_a_seconds_worth(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(PROVIDER, Limit(requests_per_min=121))  # 2 at once, then 2 a second

    started = [at for at, _ in starts(fleet, [CALL] * 8, seconds=60)]

    assert started == [0, 0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]


@pytest.mark.parametrize("most", [1, 7, 59, 60, 61, 100, 121, 300, 601])
def test_no_minute_has_more_requests_than_the_limit(fleet: TimedLedger, most: int) -> None:
    fleet.ledger.set_limit(KEY, Limit(requests_per_min=most))

    started = starts(fleet, [CALL] * (2 * most + 5), seconds=150)

    assert most_in_a_minute(started) <= most
    assert len(started) >= most * 1.95  # and the limit is made use of


def test_tokens_of_a_minute_pass_the_limit_by_no_more_than_the_last_call(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(tokens_per_min=1_000))
    calls = [replace(CALL, tokens=tokens) for tokens in (10, 400, 90, 300, 250, 20, 700, 5) * 3]

    started = starts(fleet, calls, seconds=600)

    assert len(started) == len(calls)
    for first, _ in started:
        within = [tokens for at, tokens in started if first <= at < first + 60]
        assert sum(within[:-1]) < 1_000
    span_s = started[-1][0]
    assert sum(tokens for _, tokens in started[:-1]) == pytest.approx(1_000 / 60 * span_s, rel=0.05)


def test_a_large_call_is_not_passed_by_small_ones_that_came_later(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(tokens_per_min=1_000))
    fleet.rates.take(replace(CALL, tokens=500), within_s=0)

    large = fleet.rates.take(replace(CALL, tokens=900), within_s=60)
    small = fleet.rates.take(replace(CALL, tokens=1), within_s=600)

    assert 29 < large.wait_s < 31
    assert small.wait_s > large.wait_s + 50
    assert (large.cause, large.is_kept) == (MODEL, True)


def test_a_call_waits_for_the_slowest_of_its_buckets_and_takes_of_the_others_only_when_it_goes(
    fleet: TimedLedger,
) -> None:
    fleet.ledger.set_limit(PROVIDER, Limit(requests_per_min=60))
    fleet.ledger.set_limit(MODEL, Limit(requests_per_min=2))
    other = ModelCall((PROVIDER,), "x", 0)
    assert fleet.rates.take(CALL, within_s=0) == GO

    held = fleet.rates.take(CALL, within_s=60)
    fleet.advance(1.0)

    assert held == Turn(30.0, MODEL)
    assert fleet.rates.take(other, within_s=0) == GO
    fleet.advance(29.0)
    assert fleet.rates.take(CALL, within_s=0, is_kept=True) == GO
    assert fleet.rates.take(other, within_s=0).wait_s == 1.0


def test_a_call_that_cannot_wait_so_long_is_refused_and_keeps_no_time(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(PROVIDER, Limit(requests_per_min=1))
    fleet.rates.take(CALL, within_s=0)

    refused = [fleet.rates.take(CALL, within_s=59.9) for _ in range(3)]

    assert refused == [Turn(60.0, PROVIDER, is_refused=True)] * 3
    assert not refused[0].is_kept
    assert fleet.rates.take(CALL, within_s=60.0) == Turn(60.0, PROVIDER)
    assert fleet.rates.take(CALL, within_s=60.0).wait_s == 120.0


@pytest.mark.parametrize("limit", [Limit(requests_per_min=1), Limit(tokens_per_min=100)])
def test_the_time_of_a_call_that_is_not_made_after_all_is_given_to_those_that_come(
    fleet: TimedLedger, limit: Limit
) -> None:
    fleet.ledger.set_limit(MODEL, limit)
    fleet.rates.take(CALL, within_s=0)
    first = fleet.rates.take(CALL, within_s=90)
    refused = fleet.rates.take(CALL, within_s=90)

    fleet.rates.leave(CALL, first)

    assert (first.is_kept, refused.is_refused) == (True, True)
    assert fleet.rates.take(CALL, within_s=90).wait_s == pytest.approx(first.wait_s, abs=0.01)


def test_nothing_is_given_back_of_a_call_for_which_no_time_is_kept(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(requests_per_min=1))
    gone = fleet.rates.take(CALL, within_s=0)
    fleet.rates.take(CALL, within_s=90)
    refused = fleet.rates.take(CALL, within_s=90)

    for turn in (gone, refused):
        fleet.rates.leave(CALL, turn)

    assert fleet.rates.take(CALL, within_s=90).is_refused


def test_tokens_that_were_not_used_are_given_to_those_that_come(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(tokens_per_min=1_000))
    fleet.rates.take(replace(CALL, tokens=900), within_s=0)
    before = fleet.rates.take(CALL, within_s=0).wait_s

    fleet.rates.settle(CALL.buckets, -600)
    after = fleet.rates.take(CALL, within_s=0).wait_s

    assert before == pytest.approx(54, abs=1.5)
    assert after == pytest.approx(18, abs=1.5)


def test_tokens_beyond_the_estimate_are_waited_for_later(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(tokens_per_min=1_000))
    fleet.rates.take(replace(CALL, tokens=10), within_s=0)
    fleet.advance(300.0)

    fleet.rates.settle(CALL.buckets, 750)

    assert fleet.rates.take(CALL, within_s=0).wait_s == pytest.approx(45, abs=1.5)


def test_use_of_the_last_minute_is_told_by_bucket(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(PROVIDER, Limit(requests_per_min=600))
    fleet.ledger.set_limit(MODEL, Limit(requests_per_min=600, tokens_per_min=1e6))
    for _ in range(3):
        fleet.rates.take(CALL, within_s=0)
    fleet.advance(30.0)
    fleet.rates.settle(CALL.buckets, 150)

    assert fleet.rates.used() == {PROVIDER: Use(3, 0), MODEL: Use(3, 450)}
    fleet.advance(35.0)
    assert fleet.rates.used() == {MODEL: Use(0, 150)}


def test_an_account_is_closed_for_all_its_calls_and_for_no_other(fleet: TimedLedger) -> None:
    fleet.rates.close("x", 20.0)
    fleet.rates.close("x", 5.0)

    assert fleet.rates.known().closed == {"x": 20.0}
    assert fleet.rates.take(CALL, within_s=60) == Turn(20.0, CLOSED)
    assert fleet.rates.take(CALL, within_s=19) == Turn(20.0, CLOSED, is_refused=True)
    assert fleet.rates.take(replace(CALL, account="y"), within_s=0) == GO
    fleet.advance(20.0)
    assert fleet.rates.take(CALL, within_s=0) == GO
    assert fleet.rates.known().closed == {}


def test_nobody_is_closed_for_longer_than_a_minute(fleet: TimedLedger) -> None:
    fleet.rates.close("x", 86_400.0)

    assert fleet.rates.known().closed == {"x": 60.0}


def test_a_new_limit_begins_anew(fleet: TimedLedger) -> None:
    limit = Limit(requests_per_min=1, tokens_per_min=100)
    fleet.ledger.set_limit(PROVIDER, limit)
    fleet.rates.take(CALL, within_s=0)
    assert fleet.rates.take(CALL, within_s=90).is_kept

    fleet.ledger.set_limit(PROVIDER, limit)

    assert fleet.rates.take(CALL, within_s=0) == GO


def test_a_trial_starts_while_there_are_calls_to_be_had_and_takes_none_itself(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(requests_per_min=2))
    fleet.ledger.open_job(replace(header(total=9, concurrency=9), lanes=((PROVIDER, MODEL),)))
    room = Room("local", 4)

    assert len(fleet.ledger.admit(room, limit=3).trials) == 3
    fleet.rates.take(CALL, within_s=0)
    held = fleet.ledger.admit(room, limit=9)

    assert (held.trials, held.wait_s) == ([], 30.0)
    assert fleet.ledger.waiting("j", room)[f"limit {MODEL}"] == 6
    fleet.advance(30.0)
    assert len(fleet.ledger.admit(room, limit=9).trials) == 1


def test_no_trial_starts_while_calls_of_others_wait_for_tokens(fleet: TimedLedger) -> None:
    fleet.ledger.set_limit(MODEL, Limit(tokens_per_min=120))
    fleet.ledger.open_job(replace(header(total=9, concurrency=9), lanes=((PROVIDER, MODEL),)))
    fleet.rates.take(CALL, within_s=0)
    waiting = fleet.rates.take(CALL, within_s=60)

    fleet.advance(waiting.wait_s)

    assert fleet.ledger.admit(Room("local", 4), limit=9).trials == []
    fleet.advance(60.0)
    assert len(fleet.ledger.admit(Room("local", 4), limit=9).trials) == 4


@dataclass
class Workers:
    """Connections of several workers to one ledger, on its real clock."""

    rates: list[Rates]


@pytest.fixture(params=["memory", "redis"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    limit = Limit(requests_per_min=600)  # 10 at once, then 9.85 a second
    if request.param == "memory":
        memory = MemoryLedger()
        memory.set_limit(PROVIDER, limit)
        yield Workers([memory.rates] * 4)
        return
    clients = [connect(request.getfixturevalue("redis_url")) for _ in range(4)]
    clients[0].flushdb()
    RedisLedger(RedisConnection(clients[0])).set_limit(PROVIDER, limit)
    yield Workers([RedisRates(RedisConnection(client)) for client in clients])
    for client in clients:
        client.close()


def test_many_threads_of_several_workers_start_no_more_than_the_limit_together(workers: Workers) -> None:
    """Each asks again as soon as it went, so that the limit is all that holds them back."""
    until, lock = time.monotonic() + 2.0, threading.Lock()
    started: list[float] = []

    def work(rates: Rates) -> None:
        is_kept, rest = False, threading.Event()
        while time.monotonic() < until:
            asked = time.monotonic()
            turn = rates.take(CALL, within_s=60, is_kept=is_kept)
            is_kept = turn.is_kept
            if turn == GO:
                with lock:
                    started.append(asked)
            rest.wait(min(turn.wait_s, max(0.0, until - time.monotonic())))

    begun = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, workers.rates * 4))
    lasted = time.monotonic() - begun

    assert 10 < len(started) <= 10 + lasted * 9.86
