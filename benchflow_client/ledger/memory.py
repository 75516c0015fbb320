"""The ledger in one process's memory: the twin of the Redis one, for tests and benchmarks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchflow_client.errors import JobExistsError, JobNotFoundError
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
    WorkerRecord,
)
from benchflow_client.schema.trial import Outcome, Receipt


@dataclass
class _Trial:
    fence: int = 0
    attempts: int = 0
    owner: str = ""
    phase: str = ""
    started: float = 0.0


@dataclass
class _Job:
    header: JobHeader
    state: JobState = JobState.OPEN
    cursor: int = 0
    receipts: dict[int, Receipt] = field(default_factory=dict)
    leases: dict[int, float] = field(default_factory=dict)  # index -> deadline
    released: dict[int, float] = field(default_factory=dict)  # index -> when
    returned: dict[int, float] = field(default_factory=dict)  # index -> not before
    trials: dict[int, _Trial] = field(default_factory=dict)
    retried: int = 0
    cancelled_by: str = ""
    cancel_reason: str = ""
    paused_by: str = ""
    pause_reason: str = ""
    first_started_at: float = 0.0
    last_finished_at: float = 0.0

    def holds(self, index: int, fence: int) -> bool:
        trial = self.trials.get(index)
        return index in self.leases and trial is not None and trial.fence == fence


class MemoryLedger:
    """State of all jobs of a fleet that is one process.

    Args:
        clock: Returns seconds since the epoch; replaced by tests that move time.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._workers: dict[str, tuple[WorkerRecord, float]] = {}
        self._roles: dict[str, tuple[str, float]] = {}

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
                raise JobExistsError(
                    f"A job named {header.job!r} is already recorded.", hint="Choose another --job-name."
                )
            self._jobs[header.job] = _Job(replace(header, created_at=self._clock()))

    def restore_job(self, header: JobHeader, receipts: Sequence[Receipt]) -> None:
        """Record a job the ledger has lost, paused."""
        self.open_job(header)
        with self._lock:
            known = self._jobs[header.job]
            known.state, known.cursor = JobState.PAUSED, header.total
            known.receipts = {receipt.trial_index: receipt for receipt in receipts}
            waiting = set(range(header.total)) - known.receipts.keys()
            known.returned = dict.fromkeys(sorted(waiting), self._clock())
            known.last_finished_at = self._clock()

    def header(self, job: str) -> JobHeader:
        """Return what was fixed when the job opened."""
        with self._lock:
            return self._known(job).header

    def release(self, job: str, *, limit: int) -> Sequence[int]:
        """Take at most `limit` waiting trials that may start now and mark them released."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.state is not JobState.OPEN:
                return []
            now = self._clock()
            room = min(limit, known.header.concurrency - len(known.leases) - len(known.released))
            due = sorted((when, str(index), index) for index, when in known.returned.items() if when <= now)
            out = [index for _, _, index in due[: max(room, 0)]]
            for index in out:
                del known.returned[index]
            while len(out) < room and known.cursor < known.header.total:
                out.append(known.cursor)
                known.cursor += 1
            known.released.update(dict.fromkeys(out, now))
            return out

    def claim(self, job: str, index: int, *, owner: str, ttl_s: float, max_attempts: int) -> Claim:
        """Ask to execute a trial."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None:
                return Claim(ClaimStatus.UNKNOWN)
            known.released.pop(index, None)
            if index in known.receipts:
                return Claim(ClaimStatus.FINISHED, receipt=known.receipts[index])
            if known.state is JobState.CLOSED:
                return Claim(ClaimStatus.UNKNOWN)
            now = self._clock()
            if known.leases.get(index, 0.0) > now:
                return Claim(ClaimStatus.BUSY)
            if known.state is JobState.PAUSED:
                known.leases.pop(index, None)
                known.returned[index] = now
                return Claim(ClaimStatus.PAUSED)
            trial = known.trials.setdefault(index, _Trial())
            status = self._admit(known, trial, max_attempts, now)
            trial.fence += 1
            trial.owner, trial.phase, trial.started = owner, "claimed", now
            known.returned.pop(index, None)
            known.leases[index] = now + ttl_s
            return Claim(status, trial.fence, trial.attempts, known.header.epoch)

    def renew(self, job: str, index: int, *, fence: int, ttl_s: float) -> RenewStatus:
        """Extend a lease that is still held."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or not known.holds(index, fence):
                return RenewStatus.LOST
            known.leases[index] = self._clock() + ttl_s
            return RenewStatus.CANCELLED if known.state is JobState.CANCELLING else RenewStatus.HELD

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

    def give_back(self, job: str, index: int, *, fence: int, reason: Return, delay_s: float) -> bool:
        """End a lease without a receipt; the trial waits again."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or not known.holds(index, fence):
                return False
            del known.leases[index]
            trial, now = known.trials[index], self._clock()
            if reason is Return.DRAIN:
                trial.attempts -= 1
                known.retried -= int(trial.attempts > 0)
                known.released[index] = now
            else:
                known.returned[index] = now + delay_s
            return True

    def commit(self, job: str, receipt: Receipt, *, fence: int) -> Commit:
        """Hand in a receipt; the first one with a valid fence counts."""
        with self._lock:
            known, index = self._jobs.get(job), receipt.trial_index
            if known is None:
                return Commit(CommitStatus.FENCED, None)
            if index in known.receipts:
                return Commit(CommitStatus.ALREADY, known.receipts[index])
            is_swept = fence == 0 and known.state is JobState.CANCELLING and index not in known.leases
            if not is_swept and not known.holds(index, fence):
                return Commit(CommitStatus.FENCED, None)
            known.receipts[index] = receipt
            for place in (known.leases, known.released, known.returned, known.trials):
                place.pop(index, None)
            known.last_finished_at = self._clock()
            return Commit(CommitStatus.COMMITTED, receipt)

    def cancel(self, job: str, *, by: str, reason: str) -> bool:
        """Ask a job to stop."""
        with self._lock:
            known = self._known(job)
            if known.state not in {JobState.OPEN, JobState.PAUSED}:
                return False
            known.state, known.cancelled_by, known.cancel_reason = JobState.CANCELLING, by, reason
            return True

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
            if known is None or known.state is not JobState.CLOSED:
                return 0
            dropped = [index for index in indices if known.receipts.pop(index, None) is not None]
            if dropped:
                known.returned.update(dict.fromkeys(dropped, self._clock()))
                epoch = known.header.epoch + 1
                known.header = replace(known.header, group_id=group_id, epoch=epoch)
                known.state, known.cancelled_by, known.cancel_reason = JobState.OPEN, "", ""
            return len(dropped)

    def sweep_cancelled(self, job: str, *, limit: int) -> Sequence[int]:
        """Return trials of a cancelled job that nobody holds or will claim."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.state is not JobState.CANCELLING:
                return []
            out = [*known.released, *known.returned][:limit]
            while len(out) < limit and known.cursor < known.header.total:
                known.returned[known.cursor] = self._clock()
                out.append(known.cursor)
                known.cursor += 1
            return out

    def close_job(self, job: str) -> bool:
        """Mark a job closed."""
        with self._lock:
            known = self._jobs.get(job)
            if known is None or known.state is JobState.CLOSED:
                return False
            known.state = JobState.CLOSED
            return True

    def progress(self, job: str) -> JobProgress:
        """Return the counts of a job at one moment."""
        with self._lock:
            known = self._known(job)
            receipts = known.receipts.values()
            outcomes = {
                outcome.value: sum(receipt.outcome == outcome.value for receipt in receipts)
                for outcome in Outcome
            }
            return JobProgress(
                header=known.header,
                state=known.state,
                outcomes=outcomes,
                running=len(known.leases),
                waiting=known.header.total - len(known.leases) - len(known.receipts),
                released=len(known.released),
                reward_sum=sum(receipt.reward or 0.0 for receipt in receipts),
                retried=known.retried,
                cancelled_by=known.cancelled_by,
                cancel_reason=known.cancel_reason,
                paused_by=known.paused_by,
                pause_reason=known.pause_reason,
                first_started_at=known.first_started_at,
                last_finished_at=known.last_finished_at,
            )

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
            if known is None:
                return []
            now = self._clock()
            out = [index for index, when in known.released.items() if when <= now - unclaimed_s]
            expired = [index for index, until in known.leases.items() if until <= now]
            for index in expired:
                del known.leases[index]
            out += expired
            known.released.update(dict.fromkeys(out, now))
            return out

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

    def _known(self, job: str) -> _Job:
        known = self._jobs.get(job)
        if known is None:
            raise JobNotFoundError(f"No job {job!r} on this fleet.", hint="`bench jobs` lists them.")
        return known

    @staticmethod
    def _admit(known: _Job, trial: _Trial, max_attempts: int, now: float) -> ClaimStatus:
        """Count the attempt where one is left and the job still wants it."""
        if known.state is JobState.CANCELLING:
            return ClaimStatus.CANCELLED
        if trial.attempts >= max_attempts:
            return ClaimStatus.EXHAUSTED
        trial.attempts += 1
        known.retried += int(trial.attempts > 1)
        known.first_started_at = known.first_started_at or now
        return ClaimStatus.GRANTED
