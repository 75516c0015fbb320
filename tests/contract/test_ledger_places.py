"""Late, repeated and forgotten messages neither lose a trial nor start one twice, over every ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchflow_client.ledger.admission import Budget, Cause, Limit, Room
from benchflow_client.ledger.base import (
    ClaimStatus,
    CommitStatus,
    JobHeader,
    JobState,
    Ledger,
    RenewStatus,
    Return,
)
from tests.ledgers import SHORT_S, TTL_S, adds_up, claim, header, receipt, release
from tests.waiting import until

BIG = Room("local", 1000)
GPT = ("model:gpt",)


def capped(*, total: int = 6, concurrency: int = 6, **budget: Any) -> JobHeader:
    return replace(header(total=total, concurrency=concurrency), budget=Budget(**budget))


def finish(ledger: Ledger, *indices: int) -> None:
    """Let released trials pass."""
    for index in indices:
        fence = claim(ledger, index).fence
        assert ledger.commit("j", receipt(index), fence=fence).status is CommitStatus.COMMITTED


def give_back(ledger: Ledger, index: int, *, delay_s: float = 0.0, reason: Return = Return.RETRY) -> None:
    fence = claim(ledger, index).fence
    assert ledger.give_back("j", index, fence=fence, reason=reason, delay_s=delay_s)


def test_repeated_message_starts_no_trial_that_waits_its_delay(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=1))
    release(ledger, "j", limit=1)
    give_back(ledger, 0, delay_s=60)
    assert release(ledger, "j", limit=9) == [1]

    assert claim(ledger, 0).status is ClaimStatus.WAITING

    progress = ledger.progress("j")
    assert (progress.running, progress.released) == (0, 1)


def test_repeated_message_of_a_paused_job_is_counted_once(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=2))
    release(ledger, "j", limit=2)
    ledger.pause("j", by="ana", reason="")

    assert claim(ledger, 0).status is ClaimStatus.PAUSED
    assert claim(ledger, 0).status is ClaimStatus.WAITING

    assert ledger.progress("j").spent.trials == 1
    ledger.resume("j")
    release(ledger, "j", limit=1)
    assert ledger.progress("j").spent.trials == 2


def test_message_of_a_trial_whose_release_was_forgotten_starts_it_once(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=3))

    assert claim(ledger, 1).status is ClaimStatus.GRANTED

    assert release(ledger, "j", limit=9) == [0, 2]
    assert ledger.progress("j").spent.trials == 3
    assert adds_up(ledger)


def test_forgotten_release_starts_nothing_in_a_paused_job_or_on_a_budget(ledger: Ledger) -> None:
    ledger.open_job(header())
    ledger.pause("j", by="ana", reason="")
    assert claim(ledger, 0).status is ClaimStatus.WAITING

    ledger.resume("j")
    ledger.set_budget("j", Budget(trials=1))
    assert claim(ledger, 0).status is ClaimStatus.WAITING
    assert release(ledger, "j", limit=9) == [0]


def test_sweep_leaves_a_trial_that_started_by_a_forgotten_release(ledger: Ledger) -> None:
    ledger.open_job(header(total=3))
    fence = claim(ledger, 1).fence
    ledger.cancel("j", by="ana", reason="")

    assert ledger.sweep("j", limit=9) == 2

    assert ledger.renew("j", 1, fence=fence, ttl_s=TTL_S) is RenewStatus.CANCELLED
    assert adds_up(ledger)


def test_message_that_comes_after_closing_loses_no_trial(ledger: Ledger) -> None:
    ledger.open_job(header(total=2, concurrency=2))
    release(ledger, "j", limit=2)
    finish(ledger, 0)
    ledger.close_job("j")
    assert claim(ledger, 1).status is ClaimStatus.UNKNOWN

    ledger.reopen("j", [0], group_id="g2")

    assert ledger.overdue("j", unclaimed_s=0) == [1]
    assert claim(ledger, 1).status is ClaimStatus.GRANTED


def test_worker_of_before_a_reopening_cannot_speak_for_the_trial(ledger: Ledger) -> None:
    ledger.open_job(header(total=1))
    release(ledger, "j", limit=1)
    old = claim(ledger, 0).fence
    ledger.commit("j", receipt(0), fence=old)
    ledger.close_job("j")
    ledger.reopen("j", [0], group_id="g2")
    release(ledger, "j", limit=1)

    new = claim(ledger, 0).fence

    assert new > old
    assert ledger.renew("j", 0, fence=old, ttl_s=TTL_S) is RenewStatus.LOST
    assert ledger.commit("j", receipt(0), fence=old).status is CommitStatus.FENCED


def test_trial_that_was_cancelled_before_its_turn_is_reopened_once(ledger: Ledger) -> None:
    ledger.open_job(header(total=2, concurrency=2))
    ledger.cancel_trial("j", 1, by="ana", reason="")
    release(ledger, "j", limit=1)
    finish(ledger, 0)
    ledger.close_job("j")
    ledger.reopen("j", [0, 1], group_id="g2")

    assert sorted(release(ledger, "j", limit=9)) == [0, 1]
    give_back(ledger, 0, delay_s=60)

    assert release(ledger, "j", limit=9) == []
    assert adds_up(ledger)


def test_restoring_a_job_whose_answer_was_lost_counts_its_trials_once(ledger: Ledger) -> None:
    for _ in range(2):
        ledger.restore_job(header(total=3), [receipt(0), receipt(2)])

    progress = ledger.progress("j")
    assert (progress.outcomes["passed"], progress.reward_sum, progress.spent.trials) == (2, 2.0, 2)
    assert progress.spent.sandbox_s == 5.0
    ledger.resume("j")
    assert release(ledger, "j", limit=9) == [1]


def test_drain_takes_back_no_attempt_that_was_not_granted(ledger: Ledger) -> None:
    ledger.open_job(header(total=2, concurrency=2))
    release(ledger, "j", limit=2)
    claim(ledger, 0, ttl_s=SHORT_S, attempts=1)
    until(lambda: claim(ledger, 0, attempts=1).status is ClaimStatus.EXHAUSTED)
    ledger.give_back("j", 0, fence=2, reason=Return.DRAIN, delay_s=0)

    assert claim(ledger, 0, attempts=1).status is ClaimStatus.EXHAUSTED

    ledger.cancel("j", by="ana", reason="")
    give_back(ledger, 1, reason=Return.DRAIN)
    ledger.sweep("j", limit=9)
    assert [kept.attempts for kept in ledger.receipts("j")] == [0]


def test_a_cap_on_trials_hides_no_retry_behind_a_trial_that_may_not_start(ledger: Ledger) -> None:
    ledger.open_job(capped(total=3, trials=5))
    release(ledger, "j", limit=9)
    finish(ledger, 0, 1, 2)
    ledger.close_job("j")
    ledger.reopen("j", [0, 1, 2], group_id="g2")
    assert release(ledger, "j", limit=9) == [0, 1]
    give_back(ledger, 0)
    finish(ledger, 1)

    assert release(ledger, "j", limit=9) == [0]

    finish(ledger, 0)
    assert ledger.admit(BIG, limit=9).stopped == ["j"]
    assert ledger.progress("j").stop_cause == Cause.TRIALS


@pytest.mark.parametrize("end", ["overdue", "claim", "drain"])
def test_lost_and_drained_attempts_pass_no_budget(ledger: Ledger, end: str) -> None:
    """What they may have cost is spent; to start again they need what is left."""
    ledger.open_job(capped(cost_usd=1.0, trial_cost_usd=1.0))
    assert release(ledger, "j", limit=9) == [0]
    if end == "drain":
        give_back(ledger, 0, reason=Return.DRAIN)
    else:
        claim(ledger, 0, ttl_s=SHORT_S)
        until(lambda: not ledger.is_live("j", 0, fence=1))
    if end == "overdue":
        assert ledger.overdue("j", unclaimed_s=60) == []

    assert claim(ledger, 0).status is ClaimStatus.WAITING

    found = ledger.admit(BIG, limit=9)
    assert (found.trials, found.stopped) == ([], ["j"])
    assert ledger.progress("j").spent.cost_usd == 1.0
    assert ledger.sweep("j", limit=9) == 6


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_job_that_is_not_paused_any_more_was_paused_by_nobody(ledger: Ledger, end: str) -> None:
    ledger.open_job(header())
    ledger.pause("j", by="ana", reason="quota")

    _ = ledger.cancel("j", by="li", reason="") if end == "cancel" else ledger.close_job("j")

    progress = ledger.progress("j")
    assert (progress.paused_by, progress.pause_reason) == ("", "")


def test_breaker_ends_a_pause(ledger: Ledger) -> None:
    ledger.open_job(replace(header(), breaker=1))
    release(ledger, "j", limit=1)
    fence = claim(ledger, 0).fence
    ledger.pause("j", by="ana", reason="quota")
    failed = receipt(0, outcome="errored", reward=None)

    state = ledger.commit(
        "j", failed._replace(code="agent.env_missing"), fence=fence, is_permanent=True
    ).state

    assert state is JobState.STOPPING
    assert ledger.progress("j").paused_by == ""


def test_cancelled_trials_wait_for_nothing(ledger: Ledger) -> None:
    ledger.set_limit("model:gpt", Limit(live=0))
    ledger.open_job(replace(header(total=6, concurrency=6), lanes=(GPT, ())))
    ledger.cancel_trial("j", 2, by="ana", reason="")

    assert dict(ledger.waiting("j", BIG)) == {"limit model:gpt": 2, Cause.SLOTS: 3}


def test_places_kept_for_another_job_stay_within_its_budget(ledger: Ledger) -> None:
    ledger.open_job(replace(capped(cost_usd=1.0, trial_cost_usd=1.0), job="first", priority=9))
    ledger.open_job(header(total=6, concurrency=6))

    found = ledger.admit(Room("local", 4), limit=9, only="j")

    assert [trial.index for trial in found.trials] == [0, 1, 2]


def test_failed_attempt_without_a_code_is_no_cause_of_a_retry(ledger: Ledger) -> None:
    ledger.open_job(header())
    release(ledger, "j", limit=1)
    fence = claim(ledger, 0).fence

    ledger.give_back("j", 0, fence=fence, reason=Return.RETRY, delay_s=0, failed=receipt(0))

    assert dict(ledger.progress("j").retry_codes) == {}


def test_restored_job_without_receipts_has_finished_nothing(ledger: Ledger) -> None:
    ledger.restore_job(header(), [])

    assert ledger.progress("j").last_finished_at == 0.0


def test_trials_above_the_cap_wait_for_it_and_the_others_for_slots(ledger: Ledger) -> None:
    ledger.open_job(capped(trials=2))
    release(ledger, "j", limit=9)

    assert dict(ledger.waiting("j", BIG)) == {Cause.TRIALS: 4, Cause.SLOTS: 2}
