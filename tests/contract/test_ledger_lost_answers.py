"""A step whose answer is lost on the way is taken again by the client, and has happened once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchflow_client.ledger import job_scripts, scripts
from benchflow_client.ledger.base import ClaimStatus, CommitStatus
from benchflow_client.ledger.connection import connect
from benchflow_client.ledger.redis import RedisLedger
from tests.ledgers import adds_up, claim, header, receipt, release
from tests.wire import Rule, Wire, sha_of, wire_to

LoseAnswer = Callable[[str], None]


@pytest.fixture
def wire(redis_url: str) -> Iterator[Wire]:
    with connect(redis_url) as client:
        client.flushdb()
    with wire_to(redis_url) as made:
        yield made


@pytest.fixture
def ledger(wire: Wire) -> RedisLedger:
    """A ledger behind the wire, with two trials of three released."""
    made = RedisLedger.at(wire.url)
    made.open_job(header())
    release(made, "j", limit=2)
    return made


@pytest.fixture
def lose_answer(wire: Wire) -> Iterator[Callable[[str], None]]:
    """Let the answer to the next call of a script be lost; a test without that call fails."""
    rules: list[Rule] = []
    yield lambda script: rules.append(wire.after(sha_of(script), act=lambda: None))
    assert all(rule.fired.is_set() for rule in rules)


def test_claim_is_granted_to_the_one_who_asks_again_and_is_one_attempt(
    lose_answer: LoseAnswer, ledger: RedisLedger
) -> None:
    lose_answer(scripts.CLAIM)

    first, other = claim(ledger, 0), claim(ledger, 0)

    assert (first.status, first.fence, first.attempt, first.group_id) == (ClaimStatus.GRANTED, 1, 1, "g")
    assert other.status is ClaimStatus.BUSY
    assert ledger.progress("j").running == 1


def test_claim_of_a_cancelled_job_is_given_the_same_answer_again(
    lose_answer: LoseAnswer, ledger: RedisLedger
) -> None:
    ledger.cancel("j", by="ana", reason="")
    lose_answer(scripts.CLAIM)

    assert claim(ledger, 0).status is ClaimStatus.CANCELLED


def test_receipt_counts_once(lose_answer: LoseAnswer, ledger: RedisLedger) -> None:
    fence = claim(ledger, 0).fence
    lose_answer(scripts.COMMIT)

    done = ledger.commit("j", receipt(0), fence=fence)

    assert (done.status, done.receipt) == (CommitStatus.ALREADY, receipt(0))
    assert ledger.progress("j").outcomes["passed"] == 1
    assert adds_up(ledger)


def test_job_is_opened_and_reopened_once(lose_answer: LoseAnswer, ledger: RedisLedger) -> None:
    lose_answer(job_scripts.OPEN)
    ledger.open_job(header("other"))
    for index in range(2):
        ledger.commit("j", receipt(index), fence=claim(ledger, index).fence)
    ledger.close_job("j")
    lose_answer(job_scripts.REOPEN)

    assert ledger.reopen("j", [0, 1], group_id="g2") == 2

    progress = ledger.progress("j")
    assert (progress.header.epoch, progress.waiting, ledger.open_jobs()) == (1, 3, ["j", "other"])


def test_trials_of_a_lost_job_are_counted_once(lose_answer: LoseAnswer, ledger: RedisLedger) -> None:
    ledger.forget_job("j")
    lose_answer(job_scripts.RESTORE)
    lose_answer(job_scripts.WAIT_ALL)

    ledger.restore_job(header(), [receipt(0), receipt(1)])

    progress = ledger.progress("j")
    assert (progress.outcomes["passed"], progress.waiting, progress.spent.trials) == (2, 1, 2)
