"""The ledger in one process's memory: the twin of the Redis one, for tests and benchmarks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchflow_client.errors import JobExistsError, JobNotFoundError
from benchflow_client.ledger import memory_admission
from benchflow_client.ledger.admission import Admission, Budget, Limit, Room
from benchflow_client.ledger.base import (
    Claim,
    ClaimStatus,
    Commit,
    CommitStatus,
    JobHeader,
    JobProgress,
    JobState,
    RenewStatus,
    Return,
    RunningTrial,
    TrialCancel,
    WorkerRecord,
)
from benchflow_client.ledger.memory_jobs import Job
from benchflow_client.ledger.memory_rates import MemoryRates
from benchflow_client.schema.trial import Outcome, Receipt


class MemoryLedger:
    """State of all jobs of a fleet that is one process.

    Args:
        clock: Returns seconds since the epoch; replaced by tests that move time.

    Attributes:
        rates: How often models may be asked, by the same limits.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._workers: dict[str, tuple[WorkerRecord, float]] = {}
        self._roles: dict[str, tuple[str, float]] = {}
        self._limits: dict[str, Limit] = {}
        self._used_until: dict[str, float] = {}
        self.rates = MemoryRates(self._limits, clock)

    def ping(self) -> None:
        """Do nothing: memory always answers."""

    def fleet_id(self) -> str:
        """Return the name of this object."""
        return f"memory-{id(self):x}"

    def open_job(self, header: JobHeader) -> None:
        """Record a new job with all its trials waiting."""
        with self._lock:
            known = self._jobs.get(header.job)
            if known is not None:
                if known.header.group_id == header.group_id:
                    return
                raise JobExistsError(f"A job named {header.job!r} is recorded.", hint="Choose another name.")
            known = self._jobs[header.job] = Job(replace(header, created_at=self._clock()))
            known.deadline_at = self._deadline(header.budget)

    def restore_job(self, header: JobHeader, receipts: Sequence[Receipt]) -> None:
        """Record a job the ledger has lost, paused."""
        self.open_job(header)
        with self._lock:
            self._jobs[header.job].restore(receipts, self._clock())

    def header(self, job: str) -> JobHeader:
        """Return what was fixed when the job opened."""
        with self._lock:
            return self._known(job).header

    def admit(self, room: Room, *, limit: int, only: str = "") -> Admission:
        """Choose waiting trials of a queue that may start now and mark them released."""
        with self._lock:
            return memory_admission.admit(self._open(), room, self._round(), limit=limit, only=only)

    def waiting(self, job: str, room: Room) -> Mapping[str, int]:
        """Return how many trials of a job wait for what."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.state is JobState.CLOSED:
                return {}
            return memory_admission.waiting(self._open(), known, room, self._round())

    def limits(self) -> Mapping[str, Limit]:
        """Return the limits of the fleet by bucket."""
        with self._lock:
            return dict(sorted(self._limits.items()))

    def in_flight(self) -> Mapping[str, int]:
        """Return the trials in flight by bucket, over all jobs."""
        with self._lock:
            look = self._round()
            look.count(self._open().values())
            return dict(look.live)

    def set_limit(self, bucket: str, limit: Limit | None) -> None:
        """Set what a bucket may use, from the next admission on."""
        with self._lock:
            self._limits.pop(bucket, None)
            self._used_until.pop(bucket, None)
            self.rates.forget(bucket)
            if limit is not None:
                self._limits[bucket] = limit

    def set_budget(self, job: str, budget: Budget) -> None:
        """Replace a job's budget; what it has spent stays."""
        with self._lock:
            known = self._known(job)
            is_same = (
                known.state is not JobState.CLOSED and known.header.budget.deadline_s == budget.deadline_s
            )
            known.header = replace(known.header, budget=budget)
            known.deadline_at = known.deadline_at if is_same else self._deadline(budget)

    def claim(self, job: str, index: int, *, owner: str, ttl_s: float, max_attempts: int) -> Claim:
        """Ask to execute a trial."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None:
                return Claim(ClaimStatus.UNKNOWN)
            now = self._clock()
            return known.claim(index, owner, now=now, until=now + ttl_s, max_attempts=max_attempts)

    def renew(self, job: str, index: int, *, fence: int, ttl_s: float) -> RenewStatus:
        """Extend a lease that is still held."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or not known.holds(index, fence):
                return RenewStatus.LOST
            known.leases[index] = self._clock() + ttl_s
            is_cancelled = known.state is JobState.CANCELLING or known.trials[index].is_cancelled
            return RenewStatus.CANCELLED if is_cancelled else RenewStatus.HELD

    def is_live(self, job: str, index: int, *, fence: int) -> bool:
        """Return whether a lease is held under this fence now."""
        with self._lock:
            known = self._jobs.get(job)
            return known is not None and known.holds(index, fence) and known.leases[index] > self._clock()

    def set_phase(self, job: str, index: int, *, fence: int, phase: str) -> None:
        """Record what a running trial is doing."""
        with self._lock:
            trial = self._known(job).trials.get(index)
            if trial is not None and trial.fence == fence:
                trial.phase = phase

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
        """End a lease without a receipt; the trial waits again."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or not known.holds(index, fence):
                return False
            if reason is Return.RETRY and known.state is JobState.STOPPING:
                return False
            known.give_back(index, reason, failed, now=self._clock(), delay_s=delay_s)
            return True

    def commit(self, job: str, receipt: Receipt, *, fence: int, is_permanent: bool = False) -> Commit:
        """Hand in a receipt; the first one with a valid fence counts."""
        with self._lock:
            known, index = self._jobs.get(job), receipt.trial_index
            if known is None:
                return Commit(CommitStatus.FENCED, None)
            if index in known.receipts:
                return Commit(CommitStatus.ALREADY, known.receipts[index], state=known.state)
            if not known.holds(index, fence):
                return Commit(CommitStatus.FENCED, None, state=known.state)
            known.commit(receipt, self._clock(), is_permanent=is_permanent)
            is_last = len(known.receipts) >= known.header.total
            return Commit(CommitStatus.COMMITTED, known.receipts[index], is_last, known.state)

    def cancel(self, job: str, *, by: str, reason: str) -> bool:
        """Ask a job to stop."""
        with self._lock:
            known = self._known(job)
            if known.state not in {JobState.OPEN, JobState.PAUSED, JobState.STOPPING}:
                return False
            known.state, known.cancelled_by, known.cancel_reason = JobState.CANCELLING, by, reason
            known.paused_by = known.pause_reason = ""
            return True

    def cancel_trial(self, job: str, index: int, *, by: str, reason: str) -> TrialCancel:
        """Cancel one trial of a job that is not closed."""
        with self._lock:
            known = self._known(job)
            if known.state is JobState.CLOSED or index in known.receipts:
                return TrialCancel.FINISHED
            known.cancelled_trials[index] = (by, reason)
            if index in known.leases:
                known.trials[index].is_cancelled = True
                return TrialCancel.RUNNING
            known.finish_unrun(index, Outcome.CANCELLED, self._clock())
            return TrialCancel.WAITING

    def pause(self, job: str, *, by: str, reason: str) -> bool:
        """Release nothing more until `resume`."""
        with self._lock:
            known = self._known(job)
            if known.state is not JobState.OPEN:
                return False
            known.state, known.paused_by, known.pause_reason = JobState.PAUSED, by, reason
            return True

    def resume(self, job: str) -> bool:
        """End a pause."""
        with self._lock:
            known = self._known(job)
            if known.state is not JobState.PAUSED:
                return False
            known.state, known.paused_by, known.pause_reason = JobState.OPEN, "", ""
            return True

    def reopen(self, job: str, indices: Sequence[int], *, group_id: str) -> int:
        """Let finished trials of a closed job wait again, under a new chord."""
        with self._lock:
            known = self._jobs.get(job)
            return 0 if known is None else known.reopen(indices, group_id, self._clock())

    def sweep(self, job: str, *, limit: int) -> int:
        """Commit a receipt for trials that nobody holds, of a job that ends early."""
        with self._lock:
            known = self._jobs.get(job)
            return 0 if known is None else known.sweep(limit, self._clock())

    def close_job(self, job: str) -> bool:
        """Mark a job closed."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.state is JobState.CLOSED:
                return False
            known.state, known.paused_by, known.pause_reason = JobState.CLOSED, "", ""
            known.previous.clear()
            return True

    def progress(self, job: str) -> JobProgress:
        """Return the counts of a job at one moment."""
        with self._lock:
            return self._known(job).progress()

    def running(self, job: str) -> Sequence[RunningTrial]:
        """Return the trials under a lease now, oldest first."""
        with self._lock:
            known = self._jobs.get(job)
            rows = [] if known is None else [(i, until, known.trials[i]) for i, until in known.leases.items()]
        trials = [RunningTrial(i, t.owner, t.phase, t.attempts, t.started, until) for i, until, t in rows]
        return sorted(trials, key=lambda trial: (trial.started_at, trial.index))

    def receipts(self, job: str) -> Sequence[Receipt]:
        """Return every committed receipt, in order of index."""
        with self._lock:
            known = self._jobs.get(job)
            return [] if known is None else [known.receipts[index] for index in sorted(known.receipts)]

    def jobs(self) -> Sequence[str]:
        """Return the names of all recorded jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs))

    def open_jobs(self) -> Sequence[str]:
        """Return the names of the jobs that are not closed."""
        with self._lock:
            return sorted(job for job, known in self._jobs.items() if known.state is not JobState.CLOSED)

    def overdue(self, job: str, *, unclaimed_s: float) -> Sequence[int]:
        """Return trials to publish again."""
        with self._lock:
            known = self._jobs.get(job)
            return [] if known is None else known.overdue(unclaimed_s, self._clock())

    def announce(self, worker: WorkerRecord, *, ttl_s: float) -> None:
        """Record that a worker is alive, for `ttl_s` seconds."""
        with self._lock:
            self._workers[worker.name] = (worker, self._clock() + ttl_s)

    def retire(self, name: str) -> None:
        """Remove a worker's record at once."""
        with self._lock:
            self._workers.pop(name, None)

    def workers(self) -> Sequence[WorkerRecord]:
        """Return the workers that are alive, in order of name."""
        with self._lock:
            now = self._clock()
            alive = [worker for worker, until in self._workers.values() if until > now]
        return sorted(alive, key=lambda worker: worker.name)

    def lead(self, role: str, name: str, *, ttl_s: float) -> bool:
        """Take or keep a role that one at a time has."""
        with self._lock:
            holder, until = self._roles.get(role, (name, 0.0))
            now = self._clock()
            if holder != name and until > now:
                return False
            self._roles[role] = (name, now + ttl_s)
            return True

    def forget_job(self, job: str) -> None:
        """Remove all the ledger knows of a job."""
        with self._lock:
            self._jobs.pop(job, None)

    def _known(self, job: str) -> Job:
        known = self._jobs.get(job)
        if known is None:
            raise JobNotFoundError(f"No job {job!r} on this fleet.", hint="`bench jobs` lists them.")
        return known

    def _open(self) -> Mapping[str, Job]:
        return {name: job for name, job in self._jobs.items() if job.state is not JobState.CLOSED}

    def _round(self) -> memory_admission.Round:
        return memory_admission.Round(self._clock(), self._limits, self._used_until, self.rates)

    def _deadline(self, budget: Budget) -> float | None:
        return None if budget.deadline_s is None else self._clock() + budget.deadline_s
