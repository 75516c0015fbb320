"""What a job that goes on keeps of what it was, over every implementation of the ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchflow_client.ledger.admission import Budget, Room
from benchflow_client.ledger.base import JobState, Ledger, Return
from benchflow_client.schema.trial import Receipt
from tests.ledgers import SHORT_S, TTL_S, adds_up, claim, header, receipt, release
from tests.waiting import until

ENDED = Receipt(0, "unscored", None, "", 1, 1.0, None, None, "old")


def closed_job(ledger: Ledger, *, total: int = 12, ended: int = 12) -> None:
    """Every trial of a job has ended without a score, or failed; it is closed."""
    ledger.open_job(header(total=total, concurrency=total))
    release(ledger, "j", limit=total)
    for index in range(ended):
        fence = claim(ledger, index).fence
        ledger.commit("j", ENDED._replace(trial_index=index, reward=None), fence=fence)
    ledger.close_job("j")


def outcomes(ledger: Ledger) -> dict[str, int]:
    return {name: count for name, count in ledger.progress("j").outcomes.items() if count}


def test_reopened_trials_that_a_stop_leaves_out_keep_what_they_were(ledger: Ledger) -> None:
    closed_job(ledger)
    ledger.set_budget("j", Budget(trials=14))
    ledger.reopen("j", range(12), group_id="g2")
    for index in release(ledger, "j", limit=9):
        fence = claim(ledger, index).fence
        ledger.commit("j", receipt(index), fence=fence)

    assert ledger.admit(Room("local", 99), limit=9).stopped == ["j"]
    assert ledger.sweep("j", limit=99) == 10

    assert outcomes(ledger) == {"passed": 2, "unscored": 10}
    assert ledger.progress("j").reward_sum == 2.0
    assert ledger.receipts("j")[11] == ENDED._replace(trial_index=11)
    assert adds_up(ledger)


def test_reopened_trials_of_a_cancelled_job_keep_what_they_were_also_while_they_run(ledger: Ledger) -> None:
    closed_job(ledger, total=3, ended=3)
    ledger.reopen("j", [0, 1, 2], group_id="g2")
    release(ledger, "j", limit=1)
    fence = claim(ledger, 0).fence
    ledger.cancel("j", by="ana", reason="")

    done = ledger.commit("j", Receipt(0, "cancelled", None, "", 1, 1.0, None, None, ""), fence=fence)
    ledger.sweep("j", limit=9)

    assert done.receipt == ENDED
    assert done.is_last is False
    assert outcomes(ledger) == {"unscored": 3}


def test_what_was_cancelled_before_is_cancelled_again(ledger: Ledger) -> None:
    ledger.open_job(header(total=2))
    ledger.cancel("j", by="ana", reason="")
    ledger.sweep("j", limit=9)
    ledger.close_job("j")
    ledger.set_budget("j", Budget(trials=0))
    ledger.reopen("j", [0, 1], group_id="g2")

    ledger.admit(Room("local", 99), limit=9)
    ledger.sweep("j", limit=9)

    assert outcomes(ledger) == {"not_started": 2}


def test_trials_go_on_in_the_order_of_the_plan(ledger: Ledger) -> None:
    closed_job(ledger)
    ledger.reopen("j", range(12), group_id="g2")

    assert release(ledger, "j", limit=12) == list(range(12))


def test_a_failed_attempt_of_a_stopping_job_is_its_end(ledger: Ledger) -> None:
    ledger.open_job(replace(header(total=3, concurrency=2), breaker=1))
    release(ledger, "j", limit=2)
    running, failing = claim(ledger, 0).fence, claim(ledger, 1).fence
    failed = Receipt(0, "errored", None, "sandbox.lost", 1, 1.0, None, None, "x")
    ledger.commit(
        "j", failed._replace(trial_index=1, code="agent.env_missing"), fence=failing, is_permanent=True
    )
    assert ledger.progress("j").state is JobState.STOPPING

    assert not ledger.give_back("j", 0, fence=running, reason=Return.RETRY, delay_s=0, failed=failed)
    assert ledger.commit("j", failed, fence=running).receipt == failed


def test_a_lost_attempt_of_a_job_that_stops_is_no_trial_that_was_not_started(ledger: Ledger) -> None:
    ledger.open_job(replace(header(total=2, concurrency=1), budget=Budget(deadline_s=0.3)))
    release(ledger, "j", limit=1)
    claim(ledger, 0, ttl_s=SHORT_S)
    until(lambda: ledger.overdue("j", unclaimed_s=60) or ledger.progress("j").running == 0)
    until(lambda: ledger.admit(Room("local", 99), limit=9).stopped)

    ledger.sweep("j", limit=9)

    assert [(kept.outcome, kept.code) for kept in ledger.receipts("j")] == [
        ("errored", "worker.lost"),
        ("not_started", ""),
    ]


@pytest.mark.parametrize("outcome", ["granted", "cancelled"])
def test_only_an_attempt_that_ran_is_charged(ledger: Ledger, outcome: str) -> None:
    budget = Budget(cost_usd=9.0, trial_cost_usd=2.0)
    ledger.open_job(replace(header(total=1), budget=budget))
    release(ledger, "j", limit=1)
    if outcome == "cancelled":
        ledger.cancel("j", by="ana", reason="")
    fence = ledger.claim("j", 0, owner="w", ttl_s=TTL_S, max_attempts=3).fence
    ledger.cancel("j", by="ana", reason="")

    ledger.commit("j", Receipt(0, "cancelled", None, "", 1, 1.0, None, None, ""), fence=fence)

    assert ledger.progress("j").spent.cost_usd == (2.0 if outcome == "granted" else 0.0)


def test_another_cap_leaves_a_running_deadline_as_it_was(ledger: Ledger) -> None:
    ledger.open_job(replace(header(), budget=Budget(deadline_s=SHORT_S, trials=1)))

    ledger.set_budget("j", Budget(deadline_s=SHORT_S, trials=2))

    until(lambda: ledger.admit(Room("local", 99), limit=9).stopped == ["j"])
    assert ledger.progress("j").stop_cause == "deadline"
