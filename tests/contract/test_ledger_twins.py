"""Any order of steps: the scripts on a real Redis and the ledger in memory answer alike, and lose nothing.

Both run on one clock that the test moves. For that the scripts ask a key in place of `TIME`,
which is the only difference to those in use. A failure prints the steps that lead to it. For a
long run: `TWINS_EXAMPLES=2000 pytest --hypothesis-seed=N tests/contract/test_ledger_twins.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from benchflow_client.errors import BenchflowError
from benchflow_client.ledger.admission import Budget, Limit, Room
from benchflow_client.ledger.base import (
    Claim,
    ClaimStatus,
    CommitStatus,
    JobHeader,
    JobProgress,
    JobState,
    Ledger,
    Return,
)
from benchflow_client.ledger.rates import ModelCall, Rates, Turn
from benchflow_client.schema.trial import Receipt
from tests.timed_ledgers import TimedLedger, TimedRedis

RESERVED_USD = 0.5  # no attempt here costs more
MAX_ATTEMPTS = 3
BIG = Room("local", 1000)
NAMES = ("a", "b", "c")
BUCKETS = ("sandbox:local", "provider:x", "model:x/1")
LANES: tuple[tuple[tuple[str, ...], ...], ...] = (
    ((),),
    (("provider:x", "model:x/1"), ()),
    (("provider:x", "model:x/1"), ("provider:x",), ()),
)

# Every time is a multiple of an eighth of a second and every cost of a quarter dollar: exact in binary.
names = st.sampled_from(NAMES)
picks = st.integers(0, 63)
pauses = st.sampled_from((0.0, 0.125, 1.0, 5.0, 31.0, 120.0))
usages = st.tuples(
    st.sampled_from((0.125, 0.5, 2.0)), st.sampled_from((None, 0.0, 0.25, 0.5)), st.sampled_from((None, 0, 3))
)
budgets = st.one_of(
    st.just(Budget()),
    st.builds(Budget, cost_usd=st.sampled_from((0.5, 1.0, 2.0)), trial_cost_usd=st.just(RESERVED_USD)),
    st.builds(Budget, cost_usd=st.sampled_from((0.5, 2.0)), tokens=st.sampled_from((None, 6))),
    st.builds(Budget, sandbox_s=st.sampled_from((0.25, 3.0))),
    st.builds(Budget, trials=st.integers(0, 4), deadline_s=st.sampled_from((None, 30.0))),
    st.builds(Budget, deadline_s=st.sampled_from((1.0, 30.0))),
)
limits = st.one_of(
    st.none(),
    st.builds(Limit, live=st.integers(0, 3)),
    st.builds(Limit, starts_per_s=st.sampled_from((1.0, 2.0))),
    st.builds(Limit, live=st.just(2), requests_per_min=st.sampled_from((30.0, 61.0))),
    st.builds(
        Limit, requests_per_min=st.sampled_from((None, 30.0)), tokens_per_min=st.sampled_from((61.0, 122.0))
    ),
)
model_calls = st.builds(
    ModelCall,
    st.sampled_from((BUCKETS[1:], BUCKETS[1:2])),
    st.sampled_from(("k", "l")),
    st.sampled_from((0, 1, 40)),
)
rooms = st.builds(Room, st.just("local"), st.sampled_from((1, 3, 8, 1000)))


@dataclass
class Seen:
    """What must stay true of a job whatever a ledger says of it."""

    fences: dict[int, int] = field(default_factory=dict)  # index -> the last one given
    kept: dict[int, Receipt] = field(default_factory=dict)  # receipts, for ever until reopened
    commits: Counter[tuple[int, int]] = field(default_factory=Counter)  # epoch, index
    executions: Counter[tuple[int, int]] = field(default_factory=Counter)  # epoch, index
    is_overrun: bool = False  # a trial ran that was not released: its concurrency may be passed
    was_capped: Budget | None = None  # the budget it always had; None = it was changed


@dataclass(frozen=True)
class Held:
    """A lease somebody was given; it may be lost by now."""

    job: str
    index: int
    epoch: int
    claim: Claim


class Twins(RuleBasedStateMachine):
    """Both ledgers, told the same; and the messages and leases that are about."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.client: Any = TimedRedis.from_url(self.url, decode_responses=True)
        self.clocks = TimedLedger(self.client), TimedLedger()
        self.redis, self.memory = (timed.ledger for timed in self.clocks)
        self.seen: dict[str, Seen] = {}
        self.messages: list[tuple[str, int]] = []  # ever published: any may come again
        self.held: list[Held] = []
        self.kept: list[tuple[ModelCall, Turn]] = []  # calls of models, and the time they were given

    def both(self, ask: Callable[[Ledger], Any]) -> Any:
        """Ask both and return their answer, which is one."""
        real, twin = (_answer(ask, ledger) for ledger in (self.redis, self.memory))
        assert real == twin
        return real

    def progress(self, job: str) -> JobProgress:
        found = self.memory.progress(job)
        assert isinstance(found, JobProgress)
        return found

    # Jobs

    @rule(
        name=names, total=st.integers(1, 7), concurrency=st.integers(1, 4), lanes=st.sampled_from(LANES),
        budget=budgets, breaker=st.sampled_from((0, 2)), weight=st.sampled_from((1.0, 2.0)),
        priority=st.sampled_from((5, 6)), finished=st.none() | st.lists(picks, max_size=4),
    )  # fmt: skip
    def open(self, name: str, finished: list[int] | None, total: int, **fields: Any) -> None:
        """Open a job, or take one up that the ledger has lost."""
        header = JobHeader(
            job=name, total=total, max_attempts=MAX_ATTEMPTS, owner="ana", queue="local", group_id=f"g-{name}",
            body_id="b", title="t", created_at=0, **fields,
        )  # fmt: skip
        if name in self.seen:
            return
        self.seen[name] = Seen(was_capped=header.budget)
        if finished is None:
            self.both(lambda ledger: ledger.open_job(header))
        else:
            done = {pick % total: _receipt(pick % total, "passed", (0.5, 0.25, None)) for pick in finished}
            self.both(lambda ledger: ledger.restore_job(header, list(done.values())))

    @initialize(total=st.integers(2, 7), concurrency=st.integers(1, 4), lanes=st.sampled_from(LANES))
    def begin(self, total: int, concurrency: int, lanes: Any) -> None:
        self.open(
            name="a", total=total, concurrency=concurrency, lanes=lanes, budget=Budget(), breaker=0, weight=1.0,
            priority=5, finished=None,
        )  # fmt: skip

    @rule(name=names)
    def cancel(self, name: str) -> None:
        self.both(lambda ledger: ledger.cancel(name, by="ana", reason="enough"))

    @rule(name=names)
    def pause(self, name: str) -> None:
        self.both(lambda ledger: ledger.pause(name, by="ana", reason="quota"))

    @rule(name=names)
    def resume(self, name: str) -> None:
        self.both(lambda ledger: ledger.resume(name))

    @rule(name=names, limit=st.sampled_from((1, 2, 100)))
    def sweep(self, name: str, limit: int) -> None:
        self.both(lambda ledger: ledger.sweep(name, limit=limit))

    @rule(name=names)
    def close(self, name: str) -> None:
        self.both(lambda ledger: ledger.close_job(name))

    @rule(name=names, dropped=st.lists(picks, min_size=1, max_size=5))
    def reopen(self, name: str, dropped: list[int]) -> None:
        if name not in self.seen:
            return
        before = self.progress(name)
        indices = [pick % (before.header.total + 1) for pick in dropped]
        group = f"g-{name}-{before.header.epoch + 1}"
        count = self.both(lambda ledger: ledger.reopen(name, indices, group_id=group))
        assert self.both(lambda ledger: ledger.reopen(name, indices, group_id=group)) == count
        if count:
            for index in indices:
                self.seen[name].kept.pop(index, None)

    @rule(name=names, budget=budgets)
    def set_budget(self, name: str, budget: Budget) -> None:
        self.both(lambda ledger: ledger.set_budget(name, budget))
        if name in self.seen:
            self.seen[name].was_capped = None

    @rule(bucket=st.sampled_from(BUCKETS), limit=limits)
    def set_limit(self, bucket: str, limit: Limit | None) -> None:
        self.both(lambda ledger: ledger.set_limit(bucket, limit))

    # Trials

    @rule(room=rooms, limit=st.sampled_from((1, 2, 100)), only=st.sampled_from(("", "", *NAMES)))
    def admit(self, room: Room, limit: int, only: str) -> None:
        before = self.memory.in_flight()
        found = self.both(lambda ledger: ledger.admit(room, limit=limit, only=only))
        after = self.memory.in_flight()
        assert len(found.trials) <= limit
        for bucket, cap in self.memory.limits().items():
            assert cap.live is None or after.get(bucket, 0) <= max(cap.live, before.get(bucket, 0))
        for trial in found.trials:
            progress = self.progress(trial.job)
            assert (progress.state, progress.header.group_id) == (JobState.OPEN, trial.group_id)
            self.messages.append((trial.job, trial.index))

    @precondition(lambda self: self.messages)
    @rule(pick=picks, ttl_s=st.sampled_from((1.0, 5.0, 30.0)))
    def claim(self, pick: int, ttl_s: float) -> None:
        """Deliver a message; the newest ones are likelier, none is ever too old."""
        self.take(*self.messages[-1 - pick % len(self.messages)], ttl_s)

    @rule(name=names, pick=picks)
    def claim_unseen(self, name: str, pick: int) -> None:
        """Deliver a message of which the ledger has lost its record, or which nobody sent."""
        if name in self.seen:
            self.take(name, pick % self.progress(name).header.total, 5.0)

    def take(self, job: str, index: int, ttl_s: float) -> Claim:
        before = self.progress(job)
        claim: Claim = self.both(
            lambda ledger: ledger.claim(job, index, owner="w", ttl_s=ttl_s, max_attempts=MAX_ATTEMPTS)
        )
        seen, epoch = self.seen[job], before.header.epoch
        if not claim.fence:
            return claim
        assert claim.fence > seen.fences.get(index, 0)
        seen.fences[index] = claim.fence
        in_flight = before.running + before.released
        now = self.progress(job)
        seen.is_overrun = seen.is_overrun or now.running + now.released > in_flight
        if claim.status is ClaimStatus.GRANTED:
            assert 1 <= claim.attempt <= MAX_ATTEMPTS
            seen.executions[epoch, index] += 1
            assert seen.executions[epoch, index] <= MAX_ATTEMPTS
        self.held.append(Held(job, index, epoch, claim))
        return claim

    @precondition(lambda self: self.held)
    @rule(pick=picks, ttl_s=st.sampled_from((1.0, 30.0)), phase=st.sampled_from(("agent", "verifying")))
    def renew(self, pick: int, ttl_s: float, phase: str) -> None:
        held = self.held[-1 - pick % len(self.held)]
        fence = held.claim.fence
        self.both(lambda ledger: ledger.is_live(held.job, held.index, fence=fence))
        self.both(lambda ledger: ledger.renew(held.job, held.index, fence=fence, ttl_s=ttl_s))
        self.both(lambda ledger: ledger.set_phase(held.job, held.index, fence=fence, phase=phase))

    @precondition(lambda self: self.held)
    @rule(
        pick=picks, reason=st.sampled_from(Return), delay_s=st.sampled_from((0.0, 2.0, 60.0)),
        used=st.none() | usages, code=st.sampled_from(("", "sandbox.lost")),
    )  # fmt: skip
    def give_back(self, pick: int, reason: Return, delay_s: float, used: Any, code: str) -> None:
        held = self.held[-1 - pick % len(self.held)]
        failed = None if used is None else _receipt(held.index, "errored", used, code)
        is_done = self.both(
            lambda ledger: ledger.give_back(
                held.job, held.index, fence=held.claim.fence, reason=reason, delay_s=delay_s, failed=failed
            )
        )
        if is_done and reason is Return.DRAIN and held.claim.status is ClaimStatus.GRANTED:
            self.seen[held.job].executions[held.epoch, held.index] -= 1

    @precondition(lambda self: self.held)
    @rule(
        pick=picks, outcome=st.sampled_from(("passed", "failed", "errored", "cancelled")), used=usages,
        code=st.sampled_from(("agent.env_missing", "")), is_permanent=st.booleans(),
    )  # fmt: skip
    def commit(self, pick: int, outcome: str, used: Any, code: str, is_permanent: bool) -> None:
        held = self.held[-1 - pick % len(self.held)]
        self.hand_in(held, _receipt(held.index, outcome, used, code), is_permanent=is_permanent)

    def hand_in(self, held: Held, receipt: Receipt, *, is_permanent: bool = False) -> None:
        answer = self.both(
            lambda ledger: ledger.commit(held.job, receipt, fence=held.claim.fence, is_permanent=is_permanent)
        )
        if answer.status is CommitStatus.COMMITTED:
            key = self.progress(held.job).header.epoch, held.index
            self.seen[held.job].commits[key] += 1
            assert self.seen[held.job].commits[key] == 1

    @rule(name=names, pick=picks)
    def cancel_trial(self, name: str, pick: int) -> None:
        index = pick % (self.progress(name).header.total if name in self.seen else 1)
        self.both(lambda ledger: ledger.cancel_trial(name, index, by="ana", reason="stuck"))
        self.messages.append((name, index)) if name in self.seen else None

    @rule(name=names, unclaimed_s=st.sampled_from((0.0, 30.0)))
    def overdue(self, name: str, unclaimed_s: float) -> None:
        found = self.both(lambda ledger: ledger.overdue(name, unclaimed_s=unclaimed_s))
        self.messages.extend((name, index) for index in found)

    # Calls of models

    @rule(call=model_calls, within_s=st.sampled_from((0.0, 5.0, 60.0)))
    def ask(self, call: ModelCall, within_s: float) -> None:
        turn = self.rates_both(lambda rates: rates.take(call, within_s=within_s))
        if turn.is_kept:
            self.kept.append((call, turn))

    @precondition(lambda self: self.kept)
    @rule(pick=picks)
    def come_back(self, pick: int) -> None:
        place = pick % len(self.kept)
        call, _ = self.kept[place]
        if not self.rates_both(lambda rates: rates.take(call, within_s=60.0, is_kept=True)).cause:
            self.kept.pop(place)

    @precondition(lambda self: self.kept)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        call, turn = self.kept.pop(pick % len(self.kept))
        self.rates_both(lambda rates: rates.leave(call, turn))

    @rule(tokens=st.sampled_from((-40, 0, 1, 200)))
    def settle(self, tokens: int) -> None:
        self.rates_both(lambda rates: rates.settle(BUCKETS[1:], tokens))

    @rule(account=st.sampled_from(("k", "l")), seconds=st.sampled_from((0.5, 7.0, 900.0)))
    def turn_away(self, account: str, seconds: float) -> None:
        self.rates_both(lambda rates: rates.close(account, seconds))

    def rates_both(self, ask: Callable[[Rates], Any]) -> Any:
        """Ask the rates of both and return their answer, which is one."""
        real, twin = (ask(timed.rates) for timed in self.clocks)
        assert real == twin
        return real

    @rule(seconds=pauses)
    def advance(self, seconds: float) -> None:
        for timed in self.clocks:
            timed.advance(seconds)

    # What holds after every step

    @invariant()
    def same_in_all_they_say(self) -> None:
        for job in self.seen:
            for read in ("progress", "running", "receipts", "header"):
                self.both(lambda ledger, read=read, job=job: getattr(ledger, read)(job))
            waits = self.both(lambda ledger, job=job: dict(ledger.waiting(job, BIG)))
            progress = self.progress(job)
            assert progress.state is JobState.CLOSED or sum(waits.values()) == progress.waiting
        for read in ("limits", "open_jobs", "in_flight"):
            self.both(lambda ledger, read=read: getattr(ledger, read)())
        self.rates_both(lambda rates: rates.known())
        self.rates_both(lambda rates: rates.used())

    @invariant()
    def counts_add_up(self) -> None:
        for job, seen in self.seen.items():
            progress = self.progress(job)
            assert progress.header.total == progress.finished + progress.running + progress.waiting
            in_flight = progress.running + progress.released
            assert in_flight <= progress.header.concurrency or seen.is_overrun
            assert bool(progress.paused_by) <= (progress.state is JobState.PAUSED)
            assert progress.spent.trials >= 0
            budget = seen.was_capped
            if budget is not None and budget.cost_usd is not None and budget.trial_cost_usd is not None:
                assert progress.spent.cost_usd < budget.cost_usd + RESERVED_USD

    @invariant()
    def receipts_stay(self) -> None:
        for job, seen in self.seen.items():
            found = {receipt.trial_index: receipt for receipt in self.memory.receipts(job)}
            assert found.items() >= seen.kept.items()
            assert all(receipt.attempts >= 0 for receipt in found.values())
            seen.kept = found

    @invariant()
    def each_trial_is_in_one_place(self) -> None:
        for job in self.seen:
            self.look_at_places(job, self.progress(job).header)

    def look_at_places(self, job: str, header: JobHeader) -> None:
        base, width = f"bf:{{{job}}}", len(header.lanes)
        with self.client.pipeline() as pipe:
            pipe.hgetall(base)
            pipe.hkeys(f"{base}:receipts")
            for place in ("leases", "released", *(f"returned:{lane}" for lane in range(width))):
                pipe.zrange(f"{base}:{place}", 0, -1)
            fields, finished, *others = pipe.execute()
        placed = Counter(int(index) for place in (finished, *others) for index in place)
        assert set(placed) <= set(range(header.total))
        for index in range(header.total):
            is_fresh = index // width >= int(fields.get(f"cursor:{index % width}", 0))
            assert placed[index] + is_fresh == 1 or (is_fresh and str(index) in finished)

    def teardown(self) -> None:
        """Whatever happened, every job comes to its end when its messages are delivered."""
        try:
            for bucket in BUCKETS:
                self.set_limit(bucket, None)
            jobs = [job for job in self.seen if self.progress(job).state is not JobState.CLOSED]
            for _ in range(40):
                if not (jobs := [job for job in jobs if not _is_finished(self.progress(job))]):
                    break
                self.go_on(jobs)
            assert not jobs, {job: self.progress(job) for job in jobs}
        finally:
            self.client.close()

    def go_on(self, jobs: list[str]) -> None:
        """Do what reconciler and workers do, once; only what was published runs."""
        self.advance(120.0)
        sent = len(self.messages)
        for job in jobs:
            self.resume(job)
            self.sweep(job, 100)
            self.overdue(job, 30.0)
        self.admit(BIG, 100, "")
        for job, index in self.messages[sent:]:
            claim = self.take(job, index, 30.0)
            if claim.fence:
                held = Held(job, index, 0, claim)
                self.hand_in(held, _receipt(index, "passed", (0.125, 0.25, 1)))


def _answer(ask: Callable[[Ledger], Any], ledger: Ledger) -> object:
    try:
        found = ask(ledger)
    except BenchflowError as error:
        return type(error)
    return dict(found) if isinstance(found, Mapping) else found


def _receipt(
    index: int, outcome: str, used: tuple[float, float | None, int | None], code: str = ""
) -> Receipt:
    reward = {"passed": 1.0, "failed": 0.25}.get(outcome)
    wall_s, usd, tokens = used
    return Receipt(index, outcome, reward, code, 1, wall_s, usd, tokens, "x")


def _is_finished(progress: JobProgress) -> bool:
    return progress.finished == progress.header.total


def test_any_order_of_steps_has_the_same_answers_on_redis_and_in_memory(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Twins, "url", redis_url)
    examples = int(os.environ.get("TWINS_EXAMPLES", "0"))
    run_state_machine_as_test(
        Twins,
        settings=settings(
            max_examples=examples or 40,
            stateful_step_count=60 if examples else 40,
            derandomize=not examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
