"""A job in memory and what happens to its trials; the rules are those of the Lua scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchflow_client.ledger.admission import Spent
from benchflow_client.ledger.base import ClaimStatus, JobHeader, JobProgress, JobState
from benchflow_client.schema.trial import Outcome, Receipt


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
        """Return whether no attempt of a trial was ever counted."""
        return index not in self.trials or not self.trials[index].attempts

    def fresh(self, lane: int) -> int | None:
        """Return the next trial of a lane that never waited, skipping those that are finished."""
        width = len(self.header.lanes)
        while (index := self.cursors[lane] * width + lane) < self.header.total:
            if index not in self.receipts:
                return index
            self.cursors[lane] += 1
        return None

    def all_fresh(self) -> Iterator[int]:
        """Yield every trial that never waited and is not finished."""
        width = len(self.header.lanes)
        for lane in range(width):
            first = self.cursors[lane] * width + lane
            yield from (i for i in range(first, self.header.total, width) if i not in self.receipts)

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

    def grant(self, trial: Trial, max_attempts: int, now: float) -> ClaimStatus:
        """Count an attempt where one is left and the job still wants it."""
        if self.state is JobState.CANCELLING or trial.is_cancelled:
            return ClaimStatus.CANCELLED
        if trial.attempts >= max_attempts:
            return ClaimStatus.EXHAUSTED
        trial.attempts += 1
        self.retried += int(trial.attempts > 1)
        if trial.attempts > 1 and trial.is_lost:
            self.retry_codes["worker.lost"] += 1
        trial.is_lost = False
        self.first_started_at = self.first_started_at or now
        return ClaimStatus.GRANTED

    def finish(self, receipt: Receipt, now: float) -> None:
        """Record that a trial is finished: nothing else of it is left."""
        self.receipts[receipt.trial_index] = receipt
        for place in (self.leases, self.released, self.returned, self.trials):
            place.pop(receipt.trial_index, None)
        self.last_finished_at = now

    def finish_unrun(self, index: int, outcome: Outcome, now: float) -> None:
        """Finish a trial nobody holds, of which there is no result."""
        attempts = 0 if self.is_new(index) else self.trials[index].attempts
        self.finish(Receipt(index, outcome.value, None, "", attempts, 0.0, None, None, ""), now)

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
