"""A job in memory and what happens to its trials; the rules are those of the Lua scripts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benchflow_client.ledger.admission import Budget, Spent
from benchflow_client.ledger.base import Claim, ClaimStatus, JobHeader, JobProgress, JobState, Return
from benchflow_client.schema.trial import NOT_RUN, Outcome, Receipt


@dataclass
class Trial:
    """What is kept of a trial that is not finished."""

    fence: int = 0
    attempts: int = 0
    owner: str = ""
    phase: str = ""
    started: float = 0.0
    is_cancelled: bool = False
    is_lost: bool = False  # the last attempt's worker was not heard of again
    has_started: bool = False  # an attempt was granted, also when a drain took it back
    is_counted: bool = False  # the present lease is one of the attempts


@dataclass
class Job:
    """A job; every trial is fresh, returned, released, leased or finished."""

    header: JobHeader
    state: JobState = JobState.OPEN
    cursors: Counter[int] = field(default_factory=Counter)  # lane -> positions taken
    receipts: dict[int, Receipt] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)  # index -> deadline
    released: dict[int, float] = field(default_factory=dict)  # index -> when
    returned: dict[int, float] = field(default_factory=dict)  # index -> not before
    trials: dict[int, Trial] = field(default_factory=dict)
    retried: int = 0
    retry_codes: Counter[str] = field(default_factory=Counter)
    cancelled_by: str = ""
    cancel_reason: str = ""
    paused_by: str = ""
    pause_reason: str = ""
    first_started_at: float = 0.0
    last_finished_at: float = 0.0
    stop_cause: str = ""
    stop_code: str = ""
    cancelled_trials: dict[int, tuple[str, str]] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    largest: dict[str, float] = field(default_factory=dict)  # cost_usd, tokens, sandbox_s
    settled: int = 0  # attempts whose use is known
    deadline_at: float | None = None
    streak: tuple[str, int] = ("", 0)
    first_fence: int = 0  # fences of reopened trials go on from here
    last_fence: int = 0
    previous: dict[int, Receipt] = field(default_factory=dict)  # of reopened trials without a new one
    reopened: int = 0  # trials of the last reopening
    served: int = 0  # when its last trial was admitted, in turns of its queue

    @property
    def in_flight(self) -> int:
        """Trials sent to a queue or running."""
        return len(self.leases) + len(self.released)

    @property
    def waiting(self) -> int:
        """Trials that are neither in flight nor finished."""
        return self.header.total - self.in_flight - len(self.receipts)

    def holds(self, index: int, fence: int) -> bool:
        """Return whether a lease is there under this fence, alive or overdue."""
        trial = self.trials.get(index)
        return index in self.leases and trial is not None and trial.fence == fence

    def is_new(self, index: int) -> bool:
        """Return whether no attempt of a trial ever started."""
        return index not in self.trials or not self.trials[index].has_started

    def fresh(self, lane: int) -> Iterator[int]:
        """Yield the trials of a lane that never waited and are not finished, in order."""
        width = len(self.header.lanes)
        first = self.cursors[lane] * width + lane
        return (i for i in range(first, self.header.total, width) if i not in self.receipts)

    def back(self, lane: int) -> Iterator[tuple[float, int]]:
        """Yield the moment of each trial that a lane got back, in the order in which they go on."""
        width = len(self.header.lanes)
        rows = sorted((at, str(index)) for index, at in self.returned.items() if index % width == lane)
        return ((at, int(text)) for at, text in rows)

    def move_cursor(self, index: int) -> None:
        """Note that a fresh trial and those before it in its lane are not fresh any more."""
        width = len(self.header.lanes)
        self.cursors[index % width] = index // width + 1

    def restore(self, receipts: Sequence[Receipt], now: float) -> None:
        """Take these trials as finished and let the others wait, paused."""
        self.state = JobState.PAUSED
        self.cursors.update(dict.fromkeys(range(len(self.header.lanes)), self.header.total))
        new = [receipt for receipt in receipts if receipt.trial_index not in self.receipts]
        for receipt in new:
            self.receipts[receipt.trial_index] = receipt
        # One of which no attempt was made has neither started nor cost anything.
        begun = [receipt for receipt in new if receipt.attempts > 0]
        for receipt in begun:
            self.settle(receipt)
        self.count_started(len(begun))
        waiting = [index for index in range(self.header.total) if index not in self.receipts]
        self.returned = {index: self._in_turn(index, now) for index in waiting}
        self.last_finished_at = now if receipts else 0.0

    def claim(self, index: int, owner: str, *, now: float, until: float, max_attempts: int) -> Claim:
        """Give a lease on a released trial, or say why not."""
        if index in self.receipts:
            return Claim(ClaimStatus.FINISHED, receipt=self.receipts[index])
        if self.state is JobState.CLOSED:
            return Claim(ClaimStatus.UNKNOWN)
        if self.leases.get(index, 0.0) > now:
            return Claim(ClaimStatus.BUSY)
        was_leased = index in self.leases
        if was_leased:
            self.settle_lost(index, now, is_silent=True)
            if self.has_budget:
                del self.leases[index]
                self.returned[index] = now
                return Claim(ClaimStatus.WAITING)
        elif self.released.pop(index, None) is None and not self._release_fresh(index, now):
            return Claim(ClaimStatus.WAITING)
        if self.state is JobState.PAUSED:
            self.leases.pop(index, None)
            self.count_started(-int(self.is_new(index)))
            self.returned[index] = now
            return Claim(ClaimStatus.PAUSED)
        if self.state is JobState.STOPPING and not was_leased:
            self.finish_unrun(index, Outcome.NOT_STARTED, now)
            return Claim(ClaimStatus.FINISHED, receipt=self.receipts[index])
        trial = self.trials.setdefault(index, Trial(fence=self.first_fence))
        status = self._grant(trial, max_attempts, now)
        trial.fence, trial.is_counted = trial.fence + 1, status is ClaimStatus.GRANTED
        trial.owner, trial.phase, trial.started = owner, "claimed", now
        self.last_fence = max(self.last_fence, trial.fence)
        self.leases[index] = until
        return Claim(status, trial.fence, trial.attempts, self.header.group_id)

    def _release_fresh(self, index: int, now: float) -> bool:
        width = len(self.header.lanes)
        is_fresh = index // width >= self.cursors[index % width]
        if not is_fresh or self.has_budget or self.state is JobState.PAUSED:
            return False
        self.returned.update((before, now) for before in self.fresh(index % width) if before < index)
        self.move_cursor(index)
        self.count_started(1)
        return True

    def give_back(
        self, index: int, reason: Return, failed: Receipt | None, *, now: float, delay_s: float
    ) -> None:
        """End a lease that is held; the trial waits again."""
        del self.leases[index]
        trial = self.trials[index]
        if failed is None:
            self.settle_lost(index, now)
        else:
            self.settle(failed)
            self.retry_codes.update([failed.code] if failed.code else [])
        if reason is Return.RETRY:
            self.returned[index] = now + delay_s
            return
        if trial.is_counted:
            trial.attempts -= 1
            self.retried -= int(trial.attempts > 0)
        (self.returned if self.has_budget else self.released)[index] = now

    def overdue(self, unclaimed_s: float, now: float) -> list[int]:
        """Return the trials to publish again; those of a job with a budget wait to be admitted."""
        expired = _in_order(self.leases, now)
        out = _in_order(self.released, now - unclaimed_s)
        out += [] if self.has_budget else expired
        for index in expired:
            self.settle_lost(index, now, is_silent=True)
            del self.leases[index]
        if self.has_budget:
            self.returned.update(dict.fromkeys(expired, now))
        self.released.update(dict.fromkeys(out, now))
        return out

    def reopen(self, indices: Sequence[int], group_id: str, now: float) -> int:
        """Let finished trials of a closed job wait again; returns how many."""
        if self.state is not JobState.CLOSED:
            return self.reopened if group_id == self.header.group_id else 0
        dropped = [index for index in indices if index in self.receipts]
        if not dropped:
            return 0
        for receipt in map(self.receipts.pop, dropped):
            if receipt.attempts > 0 and receipt.outcome not in NOT_RUN:
                self.previous[receipt.trial_index] = receipt
        width = len(self.header.lanes)
        for index in dropped:
            self.cancelled_trials.pop(index, None)
            if index // width < self.cursors[index % width]:
                self.returned[index] = self._in_turn(index, now)
        self.header = replace(self.header, group_id=group_id, epoch=self.header.epoch + 1)
        self.state, self.cancelled_by, self.cancel_reason = JobState.OPEN, "", ""
        self.stop_cause, self.stop_code, self.streak = "", "", ("", 0)
        self.first_fence, self.reopened = self.last_fence, len(dropped)
        return self.reopened

    def sweep(self, limit: int, now: float) -> int:
        """Finish trials that nobody holds, when the job ends early; returns how many."""
        if self.state not in {JobState.CANCELLING, JobState.STOPPING}:
            return 0
        outcome = Outcome.CANCELLED if self.state is JobState.CANCELLING else Outcome.NOT_STARTED
        lanes = range(len(self.header.lanes))
        sent = [*_in_order(self.released, math.inf), *(i for lane in lanes for _, i in self.back(lane))]
        fresh = [index for lane in lanes for index in self.fresh(lane)]
        for index in fresh[: max(0, limit - len(sent))]:
            self.move_cursor(index)
        idle = [*sent, *fresh][:limit]
        for index in idle:
            self.finish_unrun(index, outcome, now)
        return len(idle)

    def _in_turn(self, index: int, now: float) -> float:
        """Return the moment from which a trial waits that goes on in the order of the plan."""
        return now - (self.header.total - index) * 1e-6

    @property
    def has_budget(self) -> bool:
        """Whether a trial whose attempt was lost needs to be admitted again."""
        return self.header.budget != Budget()

    def settle(self, receipt: Receipt) -> None:
        """Count what an attempt used."""
        self.settled += 1
        used = {"cost_usd": receipt.cost_usd, "tokens": receipt.tokens, "sandbox_s": receipt.wall_s}
        for name, number in used.items():
            if number is not None:
                self.largest[name] = max(self.largest.get(name, 0), number)
        self.spent = replace(
            self.spent,
            cost_usd=self.spent.cost_usd + (receipt.cost_usd or 0.0),
            tokens=self.spent.tokens + (receipt.tokens or 0),
            sandbox_s=self.spent.sandbox_s + receipt.wall_s,
            unknown_cost=self.spent.unknown_cost + (receipt.cost_usd is None),
            unknown_tokens=self.spent.unknown_tokens + (receipt.tokens is None),
        )

    def settle_lost(self, index: int, now: float, *, is_silent: bool = False) -> None:
        """Count an attempt of which nothing came back: its time, and what was reserved for the rest."""
        budget, trial = self.header.budget, self.trials.get(index)
        started = trial.started if trial is not None and trial.started else now
        if trial is not None and is_silent:
            trial.is_lost = True
        cost = budget.trial_cost_usd if budget.trial_cost_usd is not None else self.largest.get("cost_usd", 0)
        tokens = budget.trial_tokens if budget.trial_tokens is not None else self.largest.get("tokens", 0)
        self.spent = replace(
            self.spent,
            cost_usd=self.spent.cost_usd + cost,
            tokens=self.spent.tokens + int(tokens),
            sandbox_s=self.spent.sandbox_s + max(0.0, now - started),
        )

    def count_started(self, change: int) -> None:
        """Count trials that were sent to a queue for the first time."""
        self.spent = replace(self.spent, trials=self.spent.trials + change)

    def _grant(self, trial: Trial, max_attempts: int, now: float) -> ClaimStatus:
        """Count an attempt where one is left and the job still wants it."""
        if self.state is JobState.CANCELLING or trial.is_cancelled:
            return ClaimStatus.CANCELLED
        if trial.attempts >= max_attempts:
            return ClaimStatus.EXHAUSTED
        trial.attempts += 1
        trial.has_started = True
        self.retried += int(trial.attempts > 1)
        if trial.attempts > 1 and trial.is_lost:
            self.retry_codes["worker.lost"] += 1
        trial.is_lost = False
        self.first_started_at = self.first_started_at or now
        return ClaimStatus.GRANTED

    def commit(self, receipt: Receipt, now: float, *, is_permanent: bool) -> None:
        """Take a receipt; a reopened trial that was cancelled keeps its earlier one."""
        index, is_cancelled = receipt.trial_index, receipt.outcome == Outcome.CANCELLED
        if not is_cancelled:
            self.settle(receipt)
        elif self.trials[index].is_counted:
            self.settle_lost(index, now)
        self.finish(self.previous.get(index, receipt) if is_cancelled else receipt, now)
        self.note_streak(receipt, is_permanent=is_permanent)

    def finish(self, receipt: Receipt, now: float) -> None:
        """Record that a trial is finished: nothing else of it is left."""
        self.receipts[receipt.trial_index] = receipt
        for place in (self.leases, self.released, self.returned, self.trials, self.previous):
            place.pop(receipt.trial_index, None)
        self.last_finished_at = now

    def finish_unrun(self, index: int, outcome: Outcome, now: float) -> None:
        """Finish a trial nobody holds, of which there is no result."""
        if index in self.previous:
            self.finish(self.previous[index], now)
            return
        attempts, code = self.trials[index].attempts if index in self.trials else 0, ""
        if outcome is Outcome.NOT_STARTED and attempts > 0:
            outcome, code = Outcome.ERRORED, "worker.lost"
        self.finish(Receipt(index, outcome.value, None, code, attempts, 0.0, None, None, ""), now)

    def note_streak(self, receipt: Receipt, *, is_permanent: bool) -> None:
        """Stop the job at the last of too many equal permanent failures in a row."""
        if not is_permanent:
            if receipt.outcome != Outcome.CANCELLED:
                self.streak = (self.streak[0], 0)
            return
        code, length = self.streak
        self.streak = (receipt.code, length + 1 if code == receipt.code else 1)
        is_over = 0 < self.header.breaker <= self.streak[1]
        if is_over and self.state in {JobState.OPEN, JobState.PAUSED}:
            self.state, self.stop_cause, self.stop_code = JobState.STOPPING, "failures", receipt.code
            self.paused_by = self.pause_reason = ""

    def progress(self) -> JobProgress:
        """Return the counts."""
        kept = Counter(receipt.outcome for receipt in self.receipts.values())
        return JobProgress(
            header=self.header,
            state=self.state,
            outcomes={outcome.value: kept[outcome.value] for outcome in Outcome},
            running=len(self.leases),
            waiting=self.waiting + len(self.released),
            released=len(self.released),
            reward_sum=sum(receipt.reward or 0.0 for receipt in self.receipts.values()),
            retried=self.retried,
            cancelled_by=self.cancelled_by,
            cancel_reason=self.cancel_reason,
            paused_by=self.paused_by,
            pause_reason=self.pause_reason,
            first_started_at=self.first_started_at,
            last_finished_at=self.last_finished_at,
            stop_cause=self.stop_cause,
            stop_code=self.stop_code,
            spent=self.spent,
            retry_codes=dict(self.retry_codes),
            cancelled_trials=dict(self.cancelled_trials),
        )


def _in_order(place: dict[int, float], until: float) -> list[int]:
    """Return the trials of a place whose moment has come, in the order in which Redis returns them."""
    return [index for at, _, index in sorted((at, str(i), i) for i, at in place.items()) if at <= until]
