"""The ledger contract: the one truth about which trial is where.

Every method is one atomic step on the ledger's own clock. Execution of a trial
is at-least-once; the first commit with a valid fence is the only one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from benchflow_client.ledger.admission import Admission, Budget, Limit, Room, Spent
from benchflow_client.schema.trial import Receipt


class JobState(StrEnum):
    """Life of a job."""

    OPEN = "open"  # trials are released as slots come free
    PAUSED = "paused"  # nothing is released; running trials go on
    CANCELLING = "cancelling"  # no new trials; running ones are told to stop
    STOPPING = "stopping"  # by budget or breaker: no new trials; running ones go on
    CLOSED = "closed"  # every trial has a receipt and the summary is written


@dataclass(frozen=True, slots=True)
class JobHeader:
    """What is fixed about a job when it opens."""

    job: str
    total: int  # trials in the plan
    concurrency: int  # trials released and not finished, at most
    max_attempts: int  # executions of one trial, at most
    owner: str  # who submitted it, for people
    queue: str  # queue its trials are sent to
    group_id: str  # Celery group of the chord
    body_id: str  # Celery task id of the chord body
    title: str  # what it runs, for tables
    created_at: float  # seconds since the epoch, ledger clock; 0 = set on opening
    epoch: int = 0  # how often the job was reopened; changes group_id
    weight: float = 1.0  # share of the fleet beside other jobs
    priority: int = 5  # 0 to 9; the higher goes first
    lanes: tuple[tuple[str, ...], ...] = ((),)  # buckets of trial i: those of lane i modulo their number
    breaker: int = 0  # equal permanent failures in a row that stop the job; 0 = never
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Counts of a job at one moment; `total` is the sum of `outcomes`, `running` and `waiting`."""

    header: JobHeader
    state: JobState
    outcomes: Mapping[str, int]  # Outcome value -> finished trials
    running: int  # leased to a worker now
    waiting: int  # not running and not finished
    released: int  # of the waiting ones, those already sent to a queue
    reward_sum: float  # over trials with a verdict
    retried: int  # executions beyond the first of each trial
    cancelled_by: str  # who cancelled; empty = nobody
    cancel_reason: str  # why; may be empty
    first_started_at: float  # seconds since the epoch; 0 = nothing started
    last_finished_at: float  # seconds since the epoch; 0 = nothing finished
    paused_by: str = ""  # who paused; empty = it is not paused
    pause_reason: str = ""  # why; may be empty
    stop_cause: str = ""  # what stopped the job before its end, a `Cause` or `failures`; empty = nothing
    stop_code: str = ""  # failure code that tripped the breaker
    spent: Spent = field(default_factory=Spent)
    retry_codes: Mapping[str, int] = field(default_factory=dict)  # failure code -> executions it cost
    cancelled_trials: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # index -> who, why

    @property
    def finished(self) -> int:
        """Trials with a receipt."""
        return sum(self.outcomes.values())


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial somebody holds a lease on."""

    index: int
    owner: str  # worker
    phase: str  # building, agent, verifying, ...
    attempt: int
    started_at: float  # seconds since the epoch
    lease_until: float  # seconds since the epoch


class ClaimStatus(StrEnum):
    """Answer to a claim."""

    GRANTED = "granted"  # the caller holds the lease
    FINISHED = "finished"  # somebody committed; the receipt is attached
    BUSY = "busy"  # somebody else's lease is alive
    EXHAUSTED = "exhausted"  # every attempt is used; the caller holds the lease to say so
    CANCELLED = "cancelled"  # the job or the trial is cancelled; the caller holds the lease to say so
    PAUSED = "paused"  # the job is paused; the trial waits for its release
    WAITING = "waiting"  # it is not released, e.g. after a lost attempt; a message comes when it is admitted
    UNKNOWN = "unknown"  # no such job, or it is closed and forgotten


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of asking for a trial."""

    status: ClaimStatus
    fence: int = 0  # higher than every fence given before for this trial
    attempt: int = 0  # 1 for the first execution
    group_id: str = ""  # of the job's present chord; a caller with another one must read the job anew
    receipt: Receipt | None = None


class CommitStatus(StrEnum):
    """Answer to a commit."""

    COMMITTED = "committed"  # this receipt counts
    ALREADY = "already"  # another one was committed first and counts
    FENCED = "fenced"  # the lease went to somebody else; nothing was written


@dataclass(frozen=True, slots=True)
class Commit:
    """Result of handing in a receipt; `receipt` is the one that counts."""

    status: CommitStatus
    receipt: Receipt | None
    is_last: bool = False  # every trial of the job has a receipt now
    state: JobState = JobState.OPEN  # of the job after this commit


class TrialCancel(StrEnum):
    """Answer to the wish to cancel one trial."""

    RUNNING = "running"  # its worker is told at its next renewal
    WAITING = "waiting"  # it has a cancelled receipt now; publish it, so that its chord counts it
    FINISHED = "finished"  # it has a receipt already


class Return(StrEnum):
    """Why a lease is given back without a receipt."""

    DRAIN = "drain"  # the worker stops: no attempt; released, or waiting where there is a budget
    RETRY = "retry"  # the infrastructure failed: counted, waits its delay, released with a new message


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says about itself, again and again; it is gone when it stops saying it."""

    name: str
    queues: tuple[str, ...]
    sandboxes: tuple[str, ...]  # kinds it can run
    slots: int
    running: int
    state: str  # healthy, draining
    since: float  # seconds since the epoch
    note: str = ""  # who drains it and why

    @property
    def is_leaving(self) -> bool:
        """Whether it takes no new trials."""
        return self.state == "draining"


class RenewStatus(StrEnum):
    """Answer to a renewal."""

    HELD = "held"  # the lease is extended
    LOST = "lost"  # it went to somebody else: stop, write nothing
    CANCELLED = "cancelled"  # extended, but the job is cancelled: stop and commit


class Ledger(Protocol):
    """State of all jobs of a fleet.

    Raises `BrokerError` from any method when the ledger cannot be reached, and
    `JobNotFoundError` from those that need a job that is not there.
    """

    def ping(self) -> None:
        """Check that the ledger answers."""
        ...

    def fleet_id(self) -> str:
        """Return the name this ledger gave itself when it was first asked, the same ever after."""
        ...

    def open_job(self, header: JobHeader) -> None:
        """Record a new job with all its trials waiting.

        Raises:
            JobExistsError: The name is taken.
        """
        ...

    def restore_job(self, header: JobHeader, receipts: Sequence[Receipt]) -> None:
        """Record a job the ledger has lost: these trials are finished, the others wait.

        The job is paused; `resume` lets it go on, `close_job` ends it.

        Raises:
            JobExistsError: The ledger knows the job.
        """
        ...

    def header(self, job: str) -> JobHeader:
        """Return what was fixed when the job opened."""
        ...

    def admit(self, room: Room, *, limit: int, only: str = "") -> Admission:
        """Choose at most `limit` waiting trials of a queue that may start now and mark them released.

        Args:
            room: The queue, and how much may be in flight on it.
            limit: Trials at most.
            only: Take trials of this job alone, leaving room for what others deserve; empty = any.

        Guarantees: each trial is given to one caller only until it is returned, finished
        or found overdue; no job's concurrency, budget or bucket's limit is passed, however
        many callers there are; a job that is not open releases nothing. See `ledger.admission`.
        """
        ...

    def waiting(self, job: str, room: Room) -> Mapping[str, int]:
        """Return how many trials of a job wait for what; see `ledger.admission.Cause`."""
        ...

    def limits(self) -> Mapping[str, Limit]:
        """Return the limits of the fleet by bucket."""
        ...

    def in_flight(self) -> Mapping[str, int]:
        """Return the trials in flight by bucket, over all jobs."""
        ...

    def set_limit(self, bucket: str, limit: Limit | None) -> None:
        """Set what a bucket may use, from the next admission on; None = no limit."""
        ...

    def set_budget(self, job: str, budget: Budget) -> None:
        """Replace a job's budget; what it has spent stays, a deadline that differs counts from now."""
        ...

    def claim(self, job: str, index: int, *, owner: str, ttl_s: float, max_attempts: int) -> Claim:
        """Ask to execute a trial that was released, or whose lease ran out; see `ClaimStatus`.

        One that was never released is granted as well, unless the job is paused or has a
        budget: a ledger that came back without its last second knows nothing of its release.
        """
        ...

    def renew(self, job: str, index: int, *, fence: int, ttl_s: float) -> RenewStatus:
        """Extend a lease that is still held."""
        ...

    def is_live(self, job: str, index: int, *, fence: int) -> bool:
        """Return whether a lease is held under this fence now; an unknown job has none."""
        ...

    def set_phase(self, job: str, index: int, *, fence: int, phase: str) -> None:
        """Record what a running trial is doing; ignored when the fence is old."""
        ...

    def give_back(
        self,
        job: str,
        index: int,
        *,
        fence: int,
        reason: Return,
        delay_s: float,
        failed: Receipt | None = None,
    ) -> bool:
        """End a lease without a receipt; the trial waits again.

        Args:
            job: The job.
            index: The trial.
            fence: The lease's fence.
            reason: See `Return`.
            delay_s: Seconds before a retry may be released; 0 for a drain.
            failed: What the attempt used; None = unknown, and charged as reserved.

        Returns:
            False when the lease was already lost, or the job stops: then a failed attempt is committed.
        """
        ...

    def commit(self, job: str, receipt: Receipt, *, fence: int, is_permanent: bool = False) -> Commit:
        """Hand in a receipt; the first one with a valid fence counts, for ever.

        Args:
            job: The job.
            receipt: The receipt.
            fence: The lease's fence.
            is_permanent: Another trial would fail the same way; enough of these in a row
                stop the job.
        """
        ...

    def cancel(self, job: str, *, by: str, reason: str) -> bool:
        """Ask a job to stop; returns False when it is closed or was cancelled already.

        Guarantees: no trial is released afterwards; those under a lease are told at
        their next renewal.
        """
        ...

    def cancel_trial(self, job: str, index: int, *, by: str, reason: str) -> TrialCancel:
        """Cancel one trial of a job that is not closed."""
        ...

    def pause(self, job: str, *, by: str, reason: str) -> bool:
        """Release nothing more until `resume`; returns False when the job is not open."""
        ...

    def resume(self, job: str) -> bool:
        """End a pause; returns False when there is none."""
        ...

    def reopen(self, job: str, indices: Sequence[int], *, group_id: str) -> int:
        """Let finished trials of a closed job wait again, under a new chord.

        Args:
            job: The job.
            indices: Trials whose receipts are dropped; those without one are passed over. What they
                used stays spent. One that comes to no new end, because the job is cancelled or
                stops again, gets its earlier receipt back.
            group_id: Celery group of the new chord.

        Returns:
            How many trials wait again; 0 = the job is not closed, or none had a receipt.
            The same answer when the call is repeated with the same group.
        """
        ...

    def sweep(self, job: str, *, limit: int) -> int:
        """Commit a receipt for at most `limit` trials that nobody holds, of a job that ends early.

        They count as cancelled or, of a job that stopped by itself, as not started.
        Returns how many; safe when two callers do it at once.
        """
        ...

    def close_job(self, job: str) -> bool:
        """Mark a job closed; returns False when it was."""
        ...

    def progress(self, job: str) -> JobProgress:
        """Return the counts of a job at one moment."""
        ...

    def running(self, job: str) -> Sequence[RunningTrial]:
        """Return the trials under a lease now, oldest first."""
        ...

    def receipts(self, job: str) -> Sequence[Receipt]:
        """Return every committed receipt, in order of index."""
        ...

    def jobs(self) -> Sequence[str]:
        """Return the names of all recorded jobs, newest first."""
        ...

    def open_jobs(self) -> Sequence[str]:
        """Return the names of the jobs that are not closed, in order of name."""
        ...

    def overdue(self, job: str, *, unclaimed_s: float) -> Sequence[int]:
        """Return trials to publish again: leases that ran out, releases nobody claimed.

        Guarantees: the trials' clocks start anew, so that the next call within
        `unclaimed_s` does not return them; publishing one twice is harmless. A lease
        that ran out in a job with a budget is not returned: its trial waits for `admit`,
        since what was lost may have been the last of the budget.
        """
        ...

    def announce(self, worker: WorkerRecord, *, ttl_s: float) -> None:
        """Record that a worker is alive, for `ttl_s` seconds."""
        ...

    def retire(self, name: str) -> None:
        """Remove a worker's record at once."""
        ...

    def workers(self) -> Sequence[WorkerRecord]:
        """Return the workers that are alive, in order of name."""
        ...

    def lead(self, role: str, name: str, *, ttl_s: float) -> bool:
        """Take or keep a role that one at a time has, for `ttl_s` seconds; returns whether it is held."""
        ...

    def forget_job(self, job: str) -> None:
        """Remove all the ledger knows of a job; what the store holds stays."""
        ...
