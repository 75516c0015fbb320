"""Which waiting trials may start, over every implementation of the ledger."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from benchflow_client.ledger.admission import NO_WORKER_ROOM, Admission, Limit, Room
from benchflow_client.ledger.base import ClaimStatus, JobHeader, Ledger, RenewStatus, Return, TrialCancel
from tests.ledgers import SHORT_S, TTL_S, header, receipt, release
from tests.waiting import until

BIG = Room("local", 1000)
CLAUDE = ("provider:anthropic", "model:anthropic/claude")
GPT = ("provider:openai", "model:openai/gpt")


def job(name: str, total: int = 100, concurrency: int = 100, **fields: Any) -> JobHeader:
    return replace(header(name, total=total, concurrency=concurrency), group_id=f"g-{name}", **fields)


def names(found: Admission) -> list[str]:
    return [trial.job for trial in found.trials]


def run_one(ledger: Ledger, name: str, index: int) -> None:
    """Let a released trial pass."""
    fence = ledger.claim(name, index, owner="w", ttl_s=TTL_S, max_attempts=3).fence
    assert ledger.commit(name, receipt(index), fence=fence).receipt is not None


def test_a_queue_has_room_for_a_quarter_more_than_its_slots() -> None:
    assert Room.of("local", 4) == Room("local", 5)
    assert Room.of("local", 0) == Room("local", NO_WORKER_ROOM, is_served=False)


def test_a_queue_is_filled_no_further_than_its_room(ledger: Ledger) -> None:
    ledger.open_job(job("a"))

    assert len(ledger.admit(Room("local", 5), limit=100).trials) == 5
    assert ledger.admit(Room("local", 5), limit=100).trials == []
    run_one(ledger, "a", 0)
    assert [trial.index for trial in ledger.admit(Room("local", 5), limit=100).trials] == [5]
    assert ledger.admit(Room("docker", 5), limit=100).trials == []


def test_equal_jobs_share_a_queue_and_an_admitted_trial_names_its_chord(ledger: Ledger) -> None:
    for name in "abc":
        ledger.open_job(job(name))

    found = ledger.admit(Room("local", 12), limit=100)

    assert Counter(names(found)) == {"a": 4, "b": 4, "c": 4}
    assert {trial.group_id for trial in found.trials} == {"g-a", "g-b", "g-c"}


def test_equal_jobs_come_to_equal_shares_where_places_cannot_be_halved(ledger: Ledger) -> None:
    """The odd place goes to the job that was served longer ago, not always to the older one."""
    for name in "ab":
        ledger.open_job(job(name, total=100, concurrency=100))
    queue = list(ledger.admit(Room("local", 5), limit=100).trials)
    served: Counter[str] = Counter()
    for _ in range(60):
        done = queue.pop(0)
        served[done.job] += 1
        run_one(ledger, done.job, done.index)
        queue += ledger.admit(Room("local", 5), limit=100).trials

    assert len(queue) == 5
    assert abs(served["a"] - served["b"]) <= 5


def test_a_job_of_twice_the_weight_gets_twice_the_places(ledger: Ledger) -> None:
    ledger.open_job(job("a"))
    ledger.open_job(job("b", weight=2.0))

    assert Counter(names(ledger.admit(Room("local", 9), limit=100))) == {"a": 3, "b": 6}


def test_a_higher_priority_goes_first_whatever_runs(ledger: Ledger) -> None:
    ledger.open_job(job("a"))
    ledger.admit(Room("local", 4), limit=100)
    ledger.open_job(job("b", total=2, priority=6))

    assert names(ledger.admit(Room("local", 8), limit=100)) == ["b", "b", "a", "a"]


def test_a_small_job_goes_before_a_big_one_that_keeps_its_share(ledger: Ledger) -> None:
    ledger.open_job(job("big", total=1000, concurrency=1000))
    ledger.open_job(job("small", total=10))

    assert Counter(names(ledger.admit(Room("local", 8), limit=100))) == {"big": 2, "small": 6}


def test_who_takes_for_one_job_leaves_the_places_of_others(ledger: Ledger) -> None:
    ledger.open_job(job("a"))
    ledger.open_job(job("b"))

    assert names(ledger.admit(Room("local", 6), limit=100, only="b")) == ["b"] * 3
    assert names(ledger.admit(Room("local", 6), limit=100)) == ["a"] * 3


def test_limit_of_a_kind_of_sandbox_counts_trials_on_its_queue_for_gpus_too(ledger: Ledger) -> None:
    ledger.set_limit("sandbox:docker", Limit(live=3))
    ledger.open_job(job("a", queue="docker"))
    ledger.open_job(job("b", queue="docker.gpu"))

    assert len(ledger.admit(Room("docker", 2), limit=100).trials) == 2
    assert names(ledger.admit(Room("docker.gpu", 1000), limit=100)) == ["b"]
    assert ledger.in_flight() == {"sandbox:docker": 3}
    assert ledger.waiting("b", Room("docker.gpu", 1000))["limit sandbox:docker"] == 99


def test_live_trials_of_a_bucket_are_limited_over_all_jobs(ledger: Ledger) -> None:
    ledger.set_limit("provider:anthropic", Limit(live=3))
    for name in "ab":
        ledger.open_job(job(name, lanes=(CLAUDE, GPT)))

    found = ledger.admit(BIG, limit=20).trials

    assert sum(trial.index % 2 == 0 for trial in found) == 3
    assert len(found) == 20
    one = next(trial for trial in found if trial.index % 2 == 0)
    run_one(ledger, one.job, one.index)
    assert sum(trial.index % 2 == 0 for trial in ledger.admit(BIG, limit=20).trials) == 1


def test_a_limit_on_a_sandbox_kind_holds_for_every_trial_of_its_queue(ledger: Ledger) -> None:
    ledger.set_limit("sandbox:local", Limit(live=2))
    ledger.open_job(job("a"))

    assert len(ledger.admit(BIG, limit=20).trials) == 2
    ledger.set_limit("sandbox:local", None)
    assert len(ledger.admit(BIG, limit=20).trials) == 20


def test_starts_keep_a_pace_and_the_answer_says_when_to_come_back(ledger: Ledger) -> None:
    ledger.set_limit("model:anthropic/claude", Limit(starts_per_s=10))
    ledger.open_job(job("a", lanes=(CLAUDE,)))

    found = ledger.admit(BIG, limit=100)

    assert 10 <= len(found.trials) <= 12  # a second's worth at once
    assert found.wait_s is not None
    assert 0 < found.wait_s <= 0.11
    more: list[object] = []
    until(lambda: more.extend(ledger.admit(BIG, limit=100).trials) or more)
    assert len(more) <= 12


def test_limits_are_listed_by_bucket(ledger: Ledger) -> None:
    assert dict(ledger.limits()) == {}
    ledger.set_limit("sandbox:docker", Limit(live=8, starts_per_s=0.5))
    ledger.set_limit("model:x", Limit(requests_per_min=60))

    assert dict(ledger.limits()) == {
        "model:x": Limit(requests_per_min=60),
        "sandbox:docker": Limit(live=8, starts_per_s=0.5),
    }


def test_a_blocked_lane_does_not_hold_the_others_and_resumes_in_order(ledger: Ledger) -> None:
    ledger.set_limit("model:anthropic/claude", Limit(live=0))
    ledger.open_job(job("a", total=8, lanes=(CLAUDE, GPT)))

    assert [trial.index for trial in ledger.admit(BIG, limit=100).trials] == [1, 3, 5, 7]
    ledger.set_limit("model:anthropic/claude", None)
    assert [trial.index for trial in ledger.admit(BIG, limit=100).trials] == [0, 2, 4, 6]


def test_every_waiting_trial_has_a_reason(ledger: Ledger) -> None:
    ledger.set_limit("provider:anthropic", Limit(live=1))
    ledger.open_job(job("a", total=10, concurrency=6, lanes=(CLAUDE, GPT)))
    ledger.open_job(job("b", total=4, concurrency=1))
    room = Room("local", 4)
    ledger.admit(room, limit=2, only="a")
    fence = ledger.claim("a", 1, owner="w", ttl_s=TTL_S, max_attempts=3).fence
    ledger.give_back("a", 1, fence=fence, reason=Return.RETRY, delay_s=60)

    assert dict(ledger.waiting("a", room)) == {
        "limit provider:anthropic": 4, "retry delay": 1, "slots": 5,
    }  # fmt: skip
    ledger.admit(room, limit=9, only="b")
    assert dict(ledger.waiting("b", room)) == {"concurrency": 3, "slots": 1}
    ledger.pause("a", by="ana", reason="")
    assert dict(ledger.waiting("a", room)) == {"paused": 9, "slots": 1}
    assert dict(ledger.waiting("nothing", room)) == {}


def test_one_trial_is_cancelled_wherever_it_is(ledger: Ledger) -> None:
    ledger.open_job(job("a", total=5, concurrency=2))
    release(ledger, "a", limit=2)
    held = ledger.claim("a", 0, owner="w", ttl_s=TTL_S, max_attempts=3)

    answers = [ledger.cancel_trial("a", index, by="ana", reason="stuck") for index in (0, 1, 2)]

    assert answers == [TrialCancel.RUNNING, TrialCancel.WAITING, TrialCancel.WAITING]
    assert ledger.cancel_trial("a", 1, by="li", reason="") is TrialCancel.FINISHED
    assert ledger.renew("a", 0, fence=held.fence, ttl_s=TTL_S) is RenewStatus.CANCELLED
    assert ledger.claim("a", 1, owner="w", ttl_s=TTL_S, max_attempts=3).status is ClaimStatus.FINISHED
    assert release(ledger, "a", limit=9) == [3]
    progress = ledger.progress("a")
    assert dict(progress.cancelled_trials)[0] == ("ana", "stuck")
    assert progress.outcomes["cancelled"] == 2


def test_a_cancelled_trial_whose_worker_died_is_not_run_again(ledger: Ledger) -> None:
    ledger.open_job(job("a", total=1))
    release(ledger, "a", limit=1)
    ledger.claim("a", 0, owner="w", ttl_s=SHORT_S, max_attempts=3)
    ledger.cancel_trial("a", 0, by="ana", reason="")
    until(lambda: ledger.overdue("a", unclaimed_s=60))

    assert ledger.claim("a", 0, owner="x", ttl_s=TTL_S, max_attempts=3).status is ClaimStatus.CANCELLED
