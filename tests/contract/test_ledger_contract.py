"""One behaviour of the ledger a test, over every implementation."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from benchflow_client.errors import BrokerError, JobExistsError, JobNotFoundError
from benchflow_client.ledger.base import (
    ClaimStatus,
    CommitStatus,
    JobState,
    Ledger,
    RenewStatus,
    Return,
    WorkerRecord,
)
from benchflow_client.ledger.connection import address_of
from benchflow_client.ledger.redis import RedisLedger
from tests.ledgers import SHORT_S, TTL_S, adds_up, claim, header, receipt, release
from tests.waiting import until


def test_new_job_has_every_trial_waiting(ledger: Ledger) -> None:
    ledger.open_job(header())

    progress = ledger.progress("j")

    assert (progress.waiting, progress.running, progress.finished) == (3, 0, 0)
    assert progress.state is JobState.OPEN
    assert abs(progress.header.created_at - time.time()) < 60
    assert ledger.header("j").owner == "ana"
    assert ledger.jobs() == ["j"]


def test_name_of_a_job_can_be_used_once(ledger: Ledger) -> None:
    ledger.open_job(header())

    with pytest.raises(JobExistsError):
        ledger.open_job(replace(header(), group_id="other"))


def test_unknown_job_is_a_clear_error(ledger: Ledger) -> None:
    for read in (ledger.progress, ledger.header):
        with pytest.raises(JobNotFoundError):
            read("nothing")
    with pytest.raises(JobNotFoundError):
        ledger.cancel("nothing", by="ana", reason="")
    assert release(ledger, "nothing", limit=5) == []
    assert list(ledger.running("nothing")) == []
    assert list(ledger.receipts("nothing")) == []
    assert ledger.claim("nothing", 0, owner="w", ttl_s=1, max_attempts=1).status is ClaimStatus.UNKNOWN
    assert ledger.close_job("nothing") is False


def test_release_never_exceeds_the_jobs_concurrency(ledger: Ledger) -> None:
    ledger.open_job(header(total=5, concurrency=2))

    assert release(ledger, "j", limit=10) == [0, 1]
    assert release(ledger, "j", limit=10) == []
    claim(ledger, 0)
    assert release(ledger, "j", limit=10) == []
    ledger.commit("j", receipt(0), fence=1)
    assert release(ledger, "j", limit=10) == [2]
    assert ledger.progress("j").released == 2


def test_release_hands_out_no_more_than_asked(ledger: Ledger) -> None:
    ledger.open_job(header(total=5, concurrency=5))

    assert release(ledger, "j", limit=1) == [0]
    assert release(ledger, "j", limit=0) == []
    assert release(ledger, "j", limit=9) == [1, 2, 3, 4]


def test_claim_gives_a_lease_that_others_find_busy(ledger: Ledger) -> None:
    ledger.open_job(header())
    release(ledger, "j", limit=1)

    first, second = claim(ledger, 0, owner="a"), claim(ledger, 0, owner="b")

    assert (first.status, first.fence, first.attempt) == (ClaimStatus.GRANTED, 1, 1)
    assert second.status is ClaimStatus.BUSY
    (running,) = ledger.running("j")
    assert (running.index, running.owner, running.phase, running.attempt) == (0, "a", "claimed", 1)
    assert adds_up(ledger)


def test_expired_lease_goes_to_the_next_claim_with_a_higher_fence(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0, ttl_s=SHORT_S)

    until(lambda: claim(ledger, 0, owner="b").status is ClaimStatus.GRANTED)

    assert ledger.renew("j", 0, fence=1, ttl_s=TTL_S) is RenewStatus.LOST
    assert ledger.renew("j", 0, fence=2, ttl_s=TTL_S) is RenewStatus.HELD
    assert ledger.commit("j", receipt(0), fence=1).status is CommitStatus.FENCED
    assert ledger.commit("j", receipt(0), fence=2).status is CommitStatus.COMMITTED
    assert ledger.progress("j").retried == 1


def test_lease_is_live_under_its_own_fence_until_it_ends(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0, ttl_s=SHORT_S)
    claim(ledger, 1)

    assert ledger.is_live("j", 1, fence=1)
    assert not ledger.is_live("j", 1, fence=2)
    assert not ledger.is_live("j", 2, fence=1)
    assert not ledger.is_live("nothing", 0, fence=1)
    until(lambda: not ledger.is_live("j", 0, fence=1))
    ledger.commit("j", receipt(1), fence=1)
    assert not ledger.is_live("j", 1, fence=1)


def test_first_commit_counts_for_ever(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0)

    first = ledger.commit("j", receipt(0), fence=1)
    again = ledger.commit("j", receipt(0, outcome="failed", reward=0.0), fence=1)

    assert first.status is CommitStatus.COMMITTED
    assert again.status is CommitStatus.ALREADY
    assert again.receipt == receipt(0)
    assert list(ledger.receipts("j")) == [receipt(0)]
    assert claim(ledger, 0).receipt == receipt(0)
    assert ledger.progress("j").outcomes["passed"] == 1
    assert ledger.progress("j").reward_sum == 1.0


def test_receipt_without_verdict_adds_no_reward(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 1)

    ledger.commit("j", receipt(1, outcome="errored", reward=None), fence=1)

    progress = ledger.progress("j")
    assert progress.outcomes["errored"] == 1
    assert progress.reward_sum == 0.0
    assert next(iter(ledger.receipts("j"))).reward is None
    assert adds_up(ledger)


def test_used_up_attempts_are_reported_with_a_lease_to_say_so(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0, ttl_s=SHORT_S, attempts=1)

    until(lambda: claim(ledger, 0, attempts=1).status is ClaimStatus.EXHAUSTED)

    assert ledger.commit("j", receipt(0, outcome="errored", reward=None), fence=2).status is (
        CommitStatus.COMMITTED
    )


def test_drained_trial_keeps_its_message_and_is_not_counted_as_an_attempt(ledger: Ledger) -> None:
    ledger.open_job(header())
    release(ledger, "j", limit=1)
    claim(ledger, 0)

    assert ledger.give_back("j", 0, fence=1, reason=Return.DRAIN, delay_s=0)

    assert ledger.progress("j").released == 1
    assert ledger.give_back("j", 0, fence=1, reason=Return.DRAIN, delay_s=0) is False
    again = claim(ledger, 0)
    assert (again.attempt, again.fence) == (1, 2)
    assert ledger.progress("j").retried == 0


def test_drain_of_a_second_attempt_takes_the_retry_back(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0)
    ledger.give_back("j", 0, fence=1, reason=Return.RETRY, delay_s=0)
    release(ledger, "j", limit=1)
    claim(ledger, 0)
    assert ledger.progress("j").retried == 1

    ledger.give_back("j", 0, fence=2, reason=Return.DRAIN, delay_s=0)

    assert ledger.progress("j").retried == 0


def test_retry_waits_its_delay_without_holding_a_slot(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=1))
    release(ledger, "j", limit=1)
    claim(ledger, 0)

    ledger.give_back("j", 0, fence=1, reason=Return.RETRY, delay_s=SHORT_S)

    assert release(ledger, "j", limit=1) == [1]
    claim(ledger, 1)
    ledger.commit("j", receipt(1), fence=1)
    released: list[int] = []
    until(lambda: released.extend(release(ledger, "j", limit=1)) or released)
    assert released[0] in {0, 2}
    assert adds_up(ledger)


def test_phase_of_a_running_trial_is_visible(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0)

    ledger.set_phase("j", 0, fence=1, phase="agent")
    ledger.set_phase("j", 0, fence=99, phase="stale")

    assert ledger.running("j")[0].phase == "agent"


def test_cancel_stops_release_and_tells_running_trials(ledger: Ledger) -> None:
    ledger.open_job(header(total=4, concurrency=2))
    release(ledger, "j", limit=2)
    claim(ledger, 0)

    assert ledger.cancel("j", by="ana", reason="wrong model")

    assert ledger.cancel("j", by="li", reason="") is False
    assert release(ledger, "j", limit=5) == []
    assert ledger.renew("j", 0, fence=1, ttl_s=TTL_S) is RenewStatus.CANCELLED
    progress = ledger.progress("j")
    assert (progress.cancelled_by, progress.cancel_reason) == ("ana", "wrong model")
    assert claim(ledger, 1).status is ClaimStatus.CANCELLED


def test_sweep_finds_every_trial_of_a_cancelled_job_that_nobody_holds(ledger: Ledger) -> None:
    ledger.open_job(header(total=5, concurrency=2))
    release(ledger, "j", limit=2)
    claim(ledger, 0)
    assert ledger.sweep("j", limit=10) == 0
    ledger.cancel("j", by="ana", reason="")

    assert ledger.sweep("j", limit=10) == 4

    assert [kept.trial_index for kept in ledger.receipts("j")] == [1, 2, 3, 4]
    assert {kept.outcome for kept in ledger.receipts("j")} == {"cancelled"}
    assert ledger.commit("j", receipt(0, outcome="cancelled"), fence=0).status is CommitStatus.FENCED
    assert ledger.sweep("j", limit=10) == 0
    assert adds_up(ledger)


def test_sweep_is_bounded(ledger: Ledger) -> None:
    ledger.open_job(header(total=9, concurrency=2))
    release(ledger, "j", limit=2)
    ledger.cancel("j", by="ana", reason="")

    assert ledger.sweep("j", limit=4) == 4
    assert ledger.sweep("j", limit=9) == 5


def test_nobody_may_commit_without_a_lease_in_an_open_job(ledger: Ledger) -> None:
    ledger.open_job(header())

    assert ledger.commit("j", receipt(0), fence=0).status is CommitStatus.FENCED
    assert ledger.commit("j", receipt(0), fence=1).status is CommitStatus.FENCED
    assert ledger.commit("nothing", receipt(0), fence=1).status is CommitStatus.FENCED


def test_overdue_finds_dead_leases_and_lost_messages_once(ledger: Ledger) -> None:
    ledger.open_job(header(total=3, concurrency=3))
    release(ledger, "j", limit=3)
    claim(ledger, 0, ttl_s=SHORT_S)
    claim(ledger, 1)

    found: list[int] = []
    until(lambda: found.extend(ledger.overdue("j", unclaimed_s=TTL_S)) or found)

    assert found == [0]
    assert ledger.overdue("j", unclaimed_s=TTL_S) == []
    until(lambda: sorted(ledger.overdue("j", unclaimed_s=0.0)) == [0, 2])
    assert ledger.renew("j", 0, fence=1, ttl_s=TTL_S) is RenewStatus.LOST
    assert adds_up(ledger)
    assert list(ledger.overdue("nothing", unclaimed_s=0)) == []


def test_closed_job_takes_no_claim_but_still_answers_with_receipts(ledger: Ledger) -> None:
    ledger.open_job(header(total=2))
    claim(ledger, 0)
    ledger.commit("j", receipt(0), fence=1)

    assert ledger.close_job("j")

    assert ledger.close_job("j") is False
    assert claim(ledger, 0).status is ClaimStatus.FINISHED
    assert claim(ledger, 1).status is ClaimStatus.UNKNOWN
    assert ledger.progress("j").state is JobState.CLOSED


def test_forgotten_job_leaves_nothing(ledger: Ledger) -> None:
    ledger.open_job(header())
    claim(ledger, 0)

    ledger.forget_job("j")

    assert ledger.jobs() == []
    with pytest.raises(JobNotFoundError):
        ledger.progress("j")
    ledger.open_job(header())


def test_jobs_come_newest_first(ledger: Ledger) -> None:
    ledger.open_job(header("one"))
    until(lambda: time.time() > ledger.header("one").created_at + 0.002)
    ledger.open_job(header("two"))

    assert ledger.jobs() == ["two", "one"]


def test_worker_is_listed_while_it_says_so(ledger: Ledger) -> None:
    worker = WorkerRecord("box/1", ("docker",), ("docker",), 4, 0, "healthy", 1.0)
    ledger.announce(worker, ttl_s=TTL_S)
    ledger.announce(WorkerRecord("box/2", (), (), 1, 0, "healthy", 1.0), ttl_s=SHORT_S)

    until(lambda: ledger.workers() == [worker])

    ledger.retire("box/1")
    assert ledger.workers() == []


def test_one_of_many_claims_at_once_wins(ledger: Ledger) -> None:
    ledger.open_job(header())
    start, granted = threading.Barrier(8), []

    def race(name: str) -> None:
        start.wait()
        if claim(ledger, 0, owner=name).status is ClaimStatus.GRANTED:
            granted.append(name)

    threads = [threading.Thread(target=race, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(granted) == 1


def test_role_is_held_by_one_until_it_runs_out(ledger: Ledger) -> None:
    assert ledger.lead("reconciler", "a", ttl_s=SHORT_S)
    assert ledger.lead("reconciler", "a", ttl_s=SHORT_S)
    assert ledger.lead("other", "b", ttl_s=SHORT_S)

    assert ledger.lead("reconciler", "b", ttl_s=SHORT_S) is False

    until(lambda: ledger.lead("reconciler", "b", ttl_s=TTL_S))
    assert ledger.lead("reconciler", "a", ttl_s=TTL_S) is False


def test_ping_answers(ledger: Ledger) -> None:
    ledger.ping()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:1/0", "127.0.0.1:1"),
        ("redis://:secret@127.0.0.1:1/0", "connection refused"),
    ],
)
def test_unreachable_ledger_says_where_and_what_to_do_and_no_password(url: str, said: str) -> None:
    with pytest.raises(BrokerError) as caught:
        RedisLedger.at(url).ping()

    assert said in caught.value.message
    assert "secret" not in caught.value.message + caught.value.hint
    assert "BENCHFLOW_BROKER_URL" in caught.value.hint


def test_address_of_something_else_is_refused_with_the_form_to_use() -> None:
    with pytest.raises(BrokerError, match="must name a Redis") as caught:
        RedisLedger.at("http://x")

    assert "redis://:PASSWORD@HOST" in caught.value.hint


def test_wrong_password_is_told_apart(redis_url: str) -> None:
    with pytest.raises(BrokerError, match="refused the password"):
        RedisLedger.at(redis_url.replace("redis://:", "redis://:wrong", 1)).ping()


def test_address_has_no_credentials() -> None:
    assert address_of("redis://u:p@h:1/0") == "redis://h:1/0"
