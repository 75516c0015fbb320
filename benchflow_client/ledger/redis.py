"""The ledger on Redis (or Valkey): each step is one Lua script, see `scripts`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchflow_client.errors import JobExistsError
from benchflow_client.ledger import admission_scripts, job_scripts, scripts
from benchflow_client.ledger.admission import Admission, AdmittedTrial, Budget, Limit, Room
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
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.rates import KINDS
from benchflow_client.ledger.redis_codec import (
    LIMITS_KEY,
    MS,
    RATES_KEY,
    decode_header,
    decode_limit,
    decode_progress,
    decode_worker,
    encode_budget,
    encode_header,
    encode_limit,
    encode_usage,
)
from benchflow_client.schema.trial import Receipt

CLOSED_JOB_S = 30 * 24 * 3600
"""A closed job is listed for a month; its documents stay in the store."""

_FLEET = "bf:fleet"
_JOBS = "bf:jobs"
_OPEN = "bf:open"
_WORKERS = "bf:workers"
_WORKER = "bf:worker:"
_BATCH = 1000  # receipts in one step
_RATE_KINDS = ("starts", *KINDS, *(f"{kind}|kept" for kind in KINDS))


class RedisLedger:
    """State of all jobs of a fleet, on one Redis database.

    Args:
        connection: Where it is.
    """

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._scripts: dict[str, Any] = {
            name: connection.client.register_script(text)
            for table in (scripts.SCRIPTS, job_scripts.SCRIPTS, admission_scripts.SCRIPTS)
            for name, text in table.items()
        }

    @classmethod
    def at(cls, url: str) -> RedisLedger:
        """Return a ledger for a broker URL; nothing is sent yet."""
        return cls(RedisConnection.at(url))

    def ping(self) -> None:
        """Check that the ledger answers; raises `BrokerError` when it does not."""
        self._connection.check()

    def fleet_id(self) -> str:
        """Return the name this ledger gave itself when it was first asked."""
        with self._connection.reachable() as client:
            client.set(_FLEET, f"fleet-{secrets.token_hex(6)}", nx=True)
            return str(client.get(_FLEET))

    def open_job(self, header: JobHeader) -> None:
        """Record a new job with all its trials waiting."""
        is_new = self._run(
            "OPEN",
            header.job,
            header.job,
            len(header.lanes),
            _deadline(header.budget),
            *encode_header(header),
        )
        # The client library repeats a call whose answer was lost: then the job there is this one.
        if not is_new and self.header(header.job).group_id != header.group_id:
            raise JobExistsError(
                f"A job named {header.job!r} is already recorded.",
                hint="Choose another --job-name, or watch it: bench watch " + header.job,
            )

    def restore_job(self, header: JobHeader, receipts: Sequence[Receipt]) -> None:
        """Record a job the ledger has lost, paused."""
        self.open_job(header)
        self._run("WAIT_ALL", header.job)
        for start in range(0, len(receipts), _BATCH):
            batch = receipts[start : start + _BATCH]
            self._run("RESTORE", header.job, *(receipt.to_json() for receipt in batch))

    def header(self, job: str) -> JobHeader:
        """Return what was fixed when the job opened."""
        with self._connection.reachable() as client:
            return decode_header(job, client.hgetall(_keys(job)[0]))

    def admit(self, room: Room, *, limit: int, only: str = "") -> Admission:
        """Choose waiting trials of a queue that may start now and mark them released."""
        trials, stopped, wait_ms = self._decide("ADMIT", room.queue, room.messages, limit, only)
        return Admission(
            trials=[AdmittedTrial(job, group_id, int(index)) for job, group_id, index in trials],
            stopped=stopped,
            wait_s=int(wait_ms) / MS if wait_ms else None,
        )

    def waiting(self, job: str, room: Room) -> Mapping[str, int]:
        """Return how many trials of a job wait for what."""
        return {cause: int(count) for cause, count in self._decide("WAITING", job, room.messages)}

    def limits(self) -> Mapping[str, Limit]:
        """Return the limits of the fleet by bucket."""
        with self._connection.reachable() as client:
            texts = client.hgetall(LIMITS_KEY)
        return {bucket: decode_limit(texts[bucket]) for bucket in sorted(texts)}

    def in_flight(self) -> Mapping[str, int]:
        """Return the trials in flight by bucket, over all jobs."""
        return {bucket: int(count) for bucket, count in self._decide("IN_FLIGHT")}

    def set_limit(self, bucket: str, limit: Limit | None) -> None:
        """Set what a bucket may use, from the next admission on."""
        with self._connection.reachable() as client, client.pipeline() as pipe:
            pipe.hdel(RATES_KEY, *(f"{bucket}|{kind}" for kind in _RATE_KINDS))
            if limit is None:
                pipe.hdel(LIMITS_KEY, bucket)
            else:
                pipe.hset(LIMITS_KEY, bucket, encode_limit(limit))
            pipe.execute()

    def set_budget(self, job: str, budget: Budget) -> None:
        """Replace a job's budget; what it has spent stays."""
        self.header(job)
        self._run("SET_BUDGET", job, encode_budget(budget), _deadline(budget))

    def claim(self, job: str, index: int, *, owner: str, ttl_s: float, max_attempts: int) -> Claim:
        """Ask to execute a trial."""
        status, fence, attempt, receipt, *group_id = self._run(
            "CLAIM", job, index, owner, int(ttl_s * MS), max_attempts, secrets.token_hex(8)
        )
        return Claim(
            ClaimStatus(status),
            fence=int(fence),
            attempt=int(attempt),
            group_id=group_id[0] if group_id else "",
            receipt=Receipt.from_json(receipt) if receipt else None,
        )

    def renew(self, job: str, index: int, *, fence: int, ttl_s: float) -> RenewStatus:
        """Extend a lease that is still held."""
        return RenewStatus(self._run("RENEW", job, index, fence, int(ttl_s * MS)))

    def is_live(self, job: str, index: int, *, fence: int) -> bool:
        """Return whether a lease is held under this fence now."""
        return bool(self._run("LIVE", job, index, fence))

    def set_phase(self, job: str, index: int, *, fence: int, phase: str) -> None:
        """Record what a running trial is doing."""
        self._run("PHASE", job, index, fence, phase)

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
        used = ("", "", "") if failed is None else encode_usage(failed)
        is_known, code = int(failed is not None), "" if failed is None else failed.code
        return bool(
            self._run("GIVE_BACK", job, index, fence, reason.value, int(delay_s * MS), is_known, *used, code)
        )

    def commit(self, job: str, receipt: Receipt, *, fence: int, is_permanent: bool = False) -> Commit:
        """Hand in a receipt; the first one with a valid fence counts."""
        reward = "" if receipt.reward is None else repr(receipt.reward)
        status, kept, is_last, state = self._run(
            "COMMIT", job, receipt.trial_index, fence, receipt.to_json(), receipt.outcome, reward,
            receipt.code, int(is_permanent), *encode_usage(receipt),
        )  # fmt: skip
        receipt_that_counts = Receipt.from_json(kept) if kept else None
        return Commit(CommitStatus(status), receipt_that_counts, bool(is_last), JobState(state))

    def cancel(self, job: str, *, by: str, reason: str) -> bool:
        """Ask a job to stop."""
        self.header(job)
        return bool(self._run("CANCEL", job, by, reason))

    def cancel_trial(self, job: str, index: int, *, by: str, reason: str) -> TrialCancel:
        """Cancel one trial of a job that is not closed."""
        self.header(job)
        return TrialCancel(self._run("CANCEL_TRIAL", job, index, json.dumps([by, reason])))

    def pause(self, job: str, *, by: str, reason: str) -> bool:
        """Release nothing more until `resume`."""
        self.header(job)
        return bool(self._run("PAUSE", job, by, reason))

    def resume(self, job: str) -> bool:
        """End a pause."""
        self.header(job)
        return bool(self._run("RESUME", job))

    def reopen(self, job: str, indices: Sequence[int], *, group_id: str) -> int:
        """Let finished trials of a closed job wait again, under a new chord."""
        return int(self._run("REOPEN", job, job, group_id, *indices))

    def sweep(self, job: str, *, limit: int) -> int:
        """Commit a receipt for trials that nobody holds, of a job that ends early."""
        return int(self._run("SWEEP", job, limit))

    def close_job(self, job: str) -> bool:
        """Mark a job closed."""
        return bool(self._run("CLOSE", job, CLOSED_JOB_S, job))

    def progress(self, job: str) -> JobProgress:
        """Return the counts of a job at one moment."""
        flat, running, released = self._run("PROGRESS", job)
        fields = dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else flat
        return decode_progress(job, fields, running=int(running), released=int(released))

    def running(self, job: str) -> Sequence[RunningTrial]:
        """Return the trials under a lease now, oldest first."""
        rows = self._run("RUNNING", job)
        trials = [
            RunningTrial(int(index), owner, phase, int(attempts), int(started) / MS, float(deadline) / MS)
            for index, owner, phase, attempts, started, deadline in rows
        ]
        return sorted(trials, key=lambda trial: (trial.started_at, trial.index))

    def receipts(self, job: str) -> Sequence[Receipt]:
        """Return every committed receipt, in order of index."""
        with self._connection.reachable() as client:
            rows = client.hvals(_keys(job)[1])
        return sorted((Receipt.from_json(row) for row in rows), key=lambda receipt: receipt.trial_index)

    def jobs(self) -> Sequence[str]:
        """Return the names of all recorded jobs, newest first."""
        with self._connection.reachable() as client:
            names = list(client.zrevrange(_JOBS, 0, -1))
            with client.pipeline() as pipe:
                for name in names:
                    pipe.exists(_keys(name)[0])
                known = dict(zip(names, pipe.execute(), strict=True))
            if forgotten := [name for name in names if not known[name]]:
                client.zrem(_JOBS, *forgotten)
        return [name for name in names if known[name]]

    def open_jobs(self) -> Sequence[str]:
        """Return the names of the jobs that are not closed."""
        with self._connection.reachable() as client:
            return sorted(client.smembers(_OPEN))

    def overdue(self, job: str, *, unclaimed_s: float) -> Sequence[int]:
        """Return trials to publish again."""
        return [int(index) for index in self._run("OVERDUE", job, int(unclaimed_s * MS))]

    def announce(self, worker: WorkerRecord, *, ttl_s: float) -> None:
        """Record that a worker is alive, for `ttl_s` seconds."""
        with self._connection.reachable() as client, client.pipeline() as pipe:
            pipe.set(_WORKER + worker.name, json.dumps(asdict(worker)), px=int(ttl_s * MS))
            pipe.sadd(_WORKERS, worker.name)
            pipe.execute()

    def retire(self, name: str) -> None:
        """Remove a worker's record at once."""
        with self._connection.reachable() as client, client.pipeline() as pipe:
            pipe.delete(_WORKER + name)
            pipe.srem(_WORKERS, name)
            pipe.execute()

    def workers(self) -> Sequence[WorkerRecord]:
        """Return the workers that are alive, in order of name."""
        with self._connection.reachable() as client:
            names = sorted(client.smembers(_WORKERS))
            texts = client.mget([_WORKER + name for name in names]) if names else []
            gone = [name for name, text in zip(names, texts, strict=True) if text is None]
            if gone:
                client.srem(_WORKERS, *gone)
        return [decode_worker(text) for text in texts if text is not None]

    def lead(self, role: str, name: str, *, ttl_s: float) -> bool:
        """Take or keep a role that one at a time has."""
        key, ttl_ms = f"bf:role:{role}", int(ttl_s * MS)
        with self._connection.reachable() as client:
            if client.set(key, name, nx=True, px=ttl_ms):
                return True
            is_held = bool(client.get(key) == name)
            if is_held:
                client.pexpire(key, ttl_ms)
        return is_held

    def forget_job(self, job: str) -> None:
        """Remove all the ledger knows of a job."""
        self._run("FORGET", job, job)

    def _run(self, script: str, job: str, *args: object) -> Any:
        with self._connection.reachable():
            return self._scripts[script](keys=list(_keys(job)), args=list(args))

    def _decide(self, script: str, *args: object) -> Any:
        with self._connection.reachable():
            return self._scripts[script](keys=[_OPEN, LIMITS_KEY, RATES_KEY], args=list(args))


def _deadline(budget: Budget) -> object:
    return "" if budget.deadline_s is None else budget.deadline_s


def _keys(job: str) -> tuple[str, ...]:
    base = f"bf:{{{job}}}"
    return (
        base,
        f"{base}:receipts",
        f"{base}:leases",
        f"{base}:released",
        f"{base}:returned:",
        f"{base}:t:",
        _JOBS,
        _OPEN,
    )
