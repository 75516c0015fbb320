"""What a job may spend and when it stops by itself, over every implementation of the ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchflow_client.ledger.admission import Budget, Cause, Room, Spent
from benchflow_client.ledger.base import (
    ClaimStatus,
    CommitStatus,
    JobHeader,
    JobState,
    Ledger,
    RenewStatus,
    Return,
)
from benchflow_client.schema.trial import Receipt
from tests.ledgers import SHORT_S, TTL_S, adds_up, claim, header, release
from tests.waiting import until

BIG = Room("local", 1000)


def job(*, total: int = 20, concurrency: int = 8, breaker: int = 0, **budget: Any) -> JobHeader:
    return replace(header(total=total, concurrency=concurrency), breaker=breaker, budget=Budget(**budget))


def finish(
    ledger: Ledger,
    index: int,
    *,
    usd: float | None = None,
    tokens: int | None = None,
    s: float = 1.0,
    code: str = "",
) -> JobState:
    """Let a trial end; with a code it ends in a permanent failure."""
    fence = claim(ledger, index).fence
    outcome, reward = ("errored", None) if code else ("passed", 1.0)
    done = ledger.commit(
        "j",
        Receipt(index, outcome, reward, code, 1, s, usd, tokens, "x"),
        fence=fence,
        is_permanent=bool(code),
    )
    assert done.status is CommitStatus.COMMITTED
    return done.state


def test_the_first_trial_of_a_capped_job_goes_alone_and_shows_what_one_needs(ledger: Ledger) -> None:
    ledger.open_job(job(cost_usd=10.0))

    assert release(ledger, "j", limit=20) == [0]
    assert dict(ledger.waiting("j", BIG)) == {Cause.COST: 19, Cause.SLOTS: 1}
    finish(ledger, 0, usd=2.0)

    # 2 spent and 2 each reserved: 1, 2, 3 and 4 may run, for with them 10 are spoken for.
    assert release(ledger, "j", limit=20) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("budget", "used"),
    [
        ({"cost_usd": 10.0, "trial_cost_usd": 2.0}, {"usd": 2.0}),
        ({"tokens": 10, "trial_tokens": 2}, {"tokens": 2}),
    ],
)
def test_what_is_reserved_may_not_reach_the_cap_and_what_is_left_over_is_used(
    ledger: Ledger, budget: dict[str, Any], used: dict[str, Any]
) -> None:
    ledger.open_job(job(**budget))

    assert release(ledger, "j", limit=20) == [0, 1, 2, 3, 4]
    for index in range(4):
        finish(ledger, index, **used)
    assert release(ledger, "j", limit=20) == []
    finish(ledger, 4)  # it cost nothing, so there is room for one more
    assert release(ledger, "j", limit=20) == [5]


def test_spending_never_passes_the_cap_by_more_than_one_reservation(ledger: Ledger) -> None:
    ledger.open_job(job(total=50, sandbox_s=30.0))
    released: list[int] = []
    while released or (released := release(ledger, "j", limit=50)):
        finish(ledger, released.pop(0), s=7.0)
        released += release(ledger, "j", limit=50)

    spent = ledger.progress("j").spent
    assert 30.0 <= spent.sandbox_s <= 37.0
    assert ledger.progress("j").state is JobState.STOPPING


def test_a_job_whose_budget_is_used_up_stops_and_says_what_was_not_started(ledger: Ledger) -> None:
    ledger.open_job(job(total=4, cost_usd=1.0))
    release(ledger, "j", limit=9)
    finish(ledger, 0, usd=1.5)

    found = ledger.admit(BIG, limit=9)

    assert (found.trials, found.stopped) == ([], ["j"])
    assert ledger.sweep("j", limit=99) == 3
    progress = ledger.progress("j")
    assert (progress.state, progress.stop_cause) == (JobState.STOPPING, Cause.COST)
    assert progress.outcomes["not_started"] == 3
    assert progress.spent == Spent(cost_usd=1.5, sandbox_s=1.0, trials=1, unknown_tokens=1)
    assert adds_up(ledger)


def test_a_capped_number_of_trials_is_started_and_their_retries_go_on(ledger: Ledger) -> None:
    ledger.open_job(job(total=6, trials=2))
    assert release(ledger, "j", limit=9) == [0, 1]
    fence = claim(ledger, 0).fence
    ledger.give_back("j", 0, fence=fence, reason=Return.RETRY, delay_s=0)
    finish(ledger, 1)

    found = ledger.admit(BIG, limit=9)
    assert ([trial.index for trial in found.trials], found.stopped) == ([0], [])
    fence = claim(ledger, 0).fence
    ledger.commit("j", Receipt(0, "passed", 1.0, "", 2, 1.0, None, None, "x"), fence=fence)
    assert ledger.admit(BIG, limit=9).stopped == ["j"]
    assert ledger.progress("j").stop_cause == Cause.TRIALS


def test_nothing_starts_after_the_deadline_and_running_trials_go_on(ledger: Ledger) -> None:
    ledger.open_job(job(total=4, concurrency=1, deadline_s=SHORT_S))
    found = ledger.admit(BIG, limit=1)
    assert found.wait_s is not None
    fence = claim(ledger, 0).fence

    until(lambda: ledger.admit(BIG, limit=9).stopped == ["j"])

    assert ledger.sweep("j", limit=9) == 3
    assert ledger.renew("j", 0, fence=fence, ttl_s=TTL_S) is RenewStatus.HELD
    assert ledger.commit("j", Receipt(0, "passed", 1.0, "", 1, 1, None, None, ""), fence=fence).is_last
    assert ledger.progress("j").stop_cause == Cause.DEADLINE


def test_a_larger_budget_lets_what_was_not_started_run(ledger: Ledger) -> None:
    ledger.open_job(job(total=3, cost_usd=1.0))
    release(ledger, "j", limit=9)
    finish(ledger, 0, usd=1.0)
    ledger.admit(BIG, limit=9)
    ledger.sweep("j", limit=9)
    ledger.close_job("j")

    ledger.set_budget("j", Budget(cost_usd=9.0))
    assert ledger.reopen("j", [1, 2], group_id="g2") == 2

    progress = ledger.progress("j")
    assert (progress.state, progress.stop_cause, progress.spent.cost_usd) == (JobState.OPEN, "", 1.0)
    assert release(ledger, "j", limit=9) == [1, 2]
    assert progress.header.budget == Budget(cost_usd=9.0)


def test_lost_attempts_are_charged_what_was_reserved_for_them(ledger: Ledger) -> None:
    ledger.open_job(job(total=3, concurrency=1, cost_usd=9.0, trial_cost_usd=2.0, tokens=90, trial_tokens=5))
    release(ledger, "j", limit=1)
    claim(ledger, 0, ttl_s=SHORT_S)

    until(lambda: ledger.overdue("j", unclaimed_s=60) == [] and not ledger.running("j"))
    assert release(ledger, "j", limit=1) == [0]
    claim(ledger, 0)

    progress = ledger.progress("j")
    assert (progress.spent.cost_usd, progress.spent.tokens) == (2.0, 5)
    assert 0.0 < progress.spent.sandbox_s < 5.0
    assert dict(progress.retry_codes) == {"worker.lost": 1}


def test_failed_attempts_are_charged_and_remembered_by_their_cause(ledger: Ledger) -> None:
    ledger.open_job(job(total=1))
    release(ledger, "j", limit=1)
    fence = claim(ledger, 0).fence
    failed = Receipt(0, "errored", None, "sandbox.lost", 1, 4.0, 0.5, 7, "x")

    ledger.give_back("j", 0, fence=fence, reason=Return.RETRY, delay_s=0, failed=failed)

    progress = ledger.progress("j")
    assert (progress.spent.cost_usd, progress.spent.tokens, progress.spent.sandbox_s) == (0.5, 7, 4.0)
    assert dict(progress.retry_codes) == {"sandbox.lost": 1}


def test_equal_permanent_failures_in_a_row_stop_a_job(ledger: Ledger) -> None:
    ledger.open_job(job(breaker=3))
    release(ledger, "j", limit=8)

    states = [finish(ledger, index, code=code) for index, code in enumerate(("a", "a", "b", "b", "", "b"))]
    assert set(states) == {JobState.OPEN}
    assert finish(ledger, 6, code="b") is JobState.OPEN
    assert finish(ledger, 7, code="b") is JobState.STOPPING

    progress = ledger.progress("j")
    assert (progress.stop_cause, progress.stop_code) == ("failures", "b")
    assert release(ledger, "j", limit=8) == []
    assert ledger.sweep("j", limit=99) == 12


def test_a_trial_that_was_sent_but_not_started_does_not_start_in_a_stopped_job(ledger: Ledger) -> None:
    ledger.open_job(job(total=4, breaker=1))
    release(ledger, "j", limit=2)
    finish(ledger, 0, code="agent.env_missing")

    late = claim(ledger, 1)

    assert late.status is ClaimStatus.FINISHED
    assert late.receipt is not None
    assert late.receipt.outcome == "not_started"


def test_a_stopped_job_can_still_be_cancelled(ledger: Ledger) -> None:
    ledger.open_job(job(total=4, breaker=1))
    release(ledger, "j", limit=2)
    claim(ledger, 1)
    finish(ledger, 0, code="agent.env_missing")

    assert ledger.cancel("j", by="ana", reason="")
    assert ledger.renew("j", 1, fence=1, ttl_s=TTL_S) is RenewStatus.CANCELLED


def test_a_restored_job_has_spent_what_its_trials_did_and_nothing_for_those_not_started(
    ledger: Ledger,
) -> None:
    done = [
        Receipt(0, "passed", 1.0, "", 1, 2.5, 0.5, 100, "x"),
        Receipt(1, "failed", 0.0, "", 2, 1.5, None, None, "x"),
        Receipt(2, "not_started", None, "", 0, 0.0, None, None, ""),
        Receipt(3, "cancelled", None, "", 0, 0.0, None, None, ""),
    ]

    ledger.restore_job(job(total=6, trials=3), done)
    ledger.resume("j")

    spent = Spent(cost_usd=0.5, tokens=100, sandbox_s=4.0, trials=2, unknown_cost=1, unknown_tokens=1)
    assert ledger.progress("j").spent == spent
    assert release(ledger, "j", limit=9) == [4]
