"""What a wake-up leads to: claim a trial, run it, commit its receipt, release the next.

Knows nothing of Celery; `celery_tasks` turns the answer into an acknowledgement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import BenchflowError, BrokerError, JobNotFoundError, StoreError
from benchflow_client.ledger.base import (
    Claim,
    ClaimStatus,
    Commit,
    CommitStatus,
    JobHeader,
    JobState,
    Ledger,
    Return,
)
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.base import Store
from benchflow_workers.admission import Admitter
from benchflow_workers.jobs import JobBook
from benchflow_workers.lease import Lease, LeaseKeeper, PhaseListener, Stop
from benchflow_workers.telemetry.base import NO_TELEMETRY, Telemetry
from benchflow_workers.trial.boundary import failure_of
from benchflow_workers.trial.event_loop import run_to_end
from benchflow_workers.trial.prepare import Parts
from benchflow_workers.trial.recorder import result_of, write_artifacts, write_attempt, write_config
from benchflow_workers.trial.records import Attempt, Rollout, captured_room, carried_room, frozen_room
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.trial.spans import AttemptSpans

logger = logging.getLogger(__name__)

RETRY_BASE_S, RETRY_CAP_S = 2.0, 60.0
"""A retry waits a random time up to base x 2^attempt, at most the cap ("full jitter", Brooker 2015)."""

COMMIT_PATIENCE_S = 3600.0
"""How long a finished trial waits for an unreachable ledger before it is left to the lease."""


class Answer(Enum):
    """What becomes of a message that carries no receipt."""

    IGNORED = "ignored"  # acknowledged and not counted: somebody else will return this trial
    REQUEUED = "requeued"  # back to the queue: this worker stops


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Takes wake-ups; one per worker process, used by every slot's thread.

    Attributes:
        ledger: The ledger.
        store: The store.
        keeper: Keeps leases alive.
        dispatcher: Gathers jobs that end early.
        admitter: Publishes what may start.
        jobs: Plans and headers of jobs, cached.
        parts: What trials are made of.
        worker: Name of this worker.
        scratch: Folder for files of running trials.
        telemetry: Takes spans of what is done.
    """

    ledger: Ledger
    store: Store
    keeper: LeaseKeeper
    dispatcher: Dispatcher
    admitter: Admitter
    jobs: JobBook
    parts: Parts
    worker: str
    scratch: Path
    telemetry: Telemetry = NO_TELEMETRY

    def take(self, job: str, index: int, on_phase: PhaseListener) -> Receipt | Answer:
        """Execute a trial, or find out that it needs no execution.

        Args:
            job: The job.
            index: The trial's position in the plan.
            on_phase: Told the phases that last.
        """
        try:
            header, plan = self._job_with(job, index)
            asked_at = time.monotonic()
            claim = self.ledger.claim(
                job, index, owner=self.worker, ttl_s=self.keeper.ttl_s, max_attempts=header.max_attempts
            )
        except BenchflowError as error:
            logger.warning(
                "wake-up for %s/%s not taken: %s", job, index, error, extra={"action": "not_taken"}
            )
            return Answer.IGNORED
        if claim.status is ClaimStatus.FINISHED and claim.receipt is not None:
            return claim.receipt
        if claim.status not in {ClaimStatus.GRANTED, ClaimStatus.EXHAUSTED, ClaimStatus.CANCELLED}:
            return Answer.IGNORED
        if claim.group_id != header.group_id:
            # The job was reopened since it was read, or another one has its name.
            self.jobs.forget(job)
            header, plan = self.jobs.get(job)
        attempt = Attempt(
            plan=plan, trial=plan.trial(index), number=max(claim.attempt, 1), fence=claim.fence,
            worker=self.worker, started_at=utc_now(), epoch=header.epoch,
        )  # fmt: skip
        with self.keeper.hold(job, index, claim.fence, on_phase=on_phase, asked_at=asked_at) as lease:
            spans = AttemptSpans(self.telemetry, attempt)
            return self._execute(_Execution(header, attempt, lease, claim, spans))

    def _job_with(self, job: str, index: int) -> tuple[JobHeader, Plan]:
        header, plan = self.jobs.get(job)
        if index >= plan.size:
            self.jobs.forget(job)  # another job may have its name
            header, plan = self.jobs.get(job)
        if not 0 <= index < plan.size:
            raise JobNotFoundError(f"Job {job!r} has no trial {index}.")
        return header, plan

    def _execute(self, execution: _Execution) -> Receipt | Answer:
        claim = execution.claim
        if claim.status is ClaimStatus.CANCELLED:
            return self._commit(execution, self._cancelled(execution))
        if claim.status is ClaimStatus.EXHAUSTED:
            text = f"The worker died in the last of {claim.attempt} attempts."
            rollout = Rollout(failures=(Failure(code="worker.lost", message=text),))
            return self._publish(execution, rollout, Redactor(), None)
        logger.info("trial %s started", execution.attempt.trial.id, extra=execution.log("trial_claimed"))
        if not self.scratch.is_dir():
            text = f"The folder for files of running trials, {self.scratch}, is gone."
            rollout = Rollout(failures=(Failure(code="store.write_failed", message=text),))
            return self._publish(execution, rollout, Redactor(), None)
        # Made by whoever first writes into it: an attempt that collects nothing needs none.
        folder = self.scratch / execution.attempt.folder
        try:
            return self._run(execution, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for room in (frozen_room(folder), carried_room(folder), captured_room(folder)):
                shutil.rmtree(room, ignore_errors=True)

    def _run(self, execution: _Execution, folder: Path) -> Receipt | Answer:
        lease = execution.lease
        try:
            write_config(self.store, execution.attempt)
            rollout, secrets = run_to_end(
                _until_stopped(
                    execution.attempt,
                    self.parts,
                    folder,
                    lease=lease,
                    observe=lambda phase: self._note_phase(execution, phase),
                )
            )
        except StoreError as error:
            rollout, secrets = Rollout(failures=(failure_of(error),)), frozenset()
        except asyncio.CancelledError:
            return self._stopped(execution)
        if lease.stop is Stop.LOST:
            self._keep_artifacts(execution, rollout, Redactor(secrets), folder)
            return self._stopped(execution)
        return self._publish(execution, rollout, Redactor(secrets), folder)

    def _note_phase(self, execution: _Execution, phase: str) -> None:
        self.keeper.note_phase(execution.lease, phase)
        execution.spans.phase(phase)

    def _stopped(self, execution: _Execution) -> Receipt | Answer:
        """End a trial that was told to stop; its sandbox is closed already."""
        reason = execution.lease.stop
        execution.spans.stop("stopped" if reason is None else reason.value)
        logger.info(
            "trial %s stopped: %s", execution.attempt.trial.id, reason, extra=execution.log("trial_stopped")
        )
        if reason is Stop.CANCELLED:
            return self._commit(execution, self._cancelled(execution))
        if reason is Stop.DRAINING and self._give_back(execution, Return.DRAIN):
            return Answer.REQUEUED
        return Answer.IGNORED

    def _keep_artifacts(
        self, execution: _Execution, rollout: Rollout, redactor: Redactor, folder: Path
    ) -> None:
        """Keep what an attempt without a lease has come to, in its own folder, where it counts for nothing."""
        result = result_of(execution.attempt, rollout, redactor)
        try:
            write_artifacts(self.store, result, rollout, folder=folder, redactor=redactor)
        except StoreError as error:
            logger.warning("files of %s not kept: %s", result.trial, error, extra=execution.log("not_stored"))

    def _publish(
        self, execution: _Execution, rollout: Rollout, redactor: Redactor, folder: Path | None
    ) -> Receipt | Answer:
        """Store an attempt's files, then hand in its receipt, or let another attempt be made."""
        result = result_of(execution.attempt, rollout, redactor)
        try:
            write_attempt(
                self.store, result, rollout, folder=folder or self.scratch / "none", redactor=redactor
            )
        except StoreError as error:
            logger.error(
                "results of %s not stored: %s", result.trial, error, extra=execution.log("not_stored")
            )
            result = result_of(execution.attempt, Rollout(failures=(failure_of(error),)), redactor)
        execution.spans.end(result)
        if self._wants_retry(execution, result) and self._give_back(
            execution, Return.RETRY, _failed(result, rollout), wait_s=_asked_to_wait(result)
        ):
            self._admit(execution)
            return Answer.IGNORED
        return self._commit(execution, Receipt.of(result))

    def _wants_retry(self, execution: _Execution, result: TrialResult) -> bool:
        if result.reward is not None or execution.claim.status is not ClaimStatus.GRANTED:
            return False
        is_left = execution.attempt.number < execution.header.max_attempts
        return is_left and any(FAILURES[failure.code].is_retried for failure in result.failures)

    def _give_back(
        self, execution: _Execution, reason: Return, failed: Receipt | None = None, *, wait_s: float = 0.0
    ) -> bool:
        number = execution.attempt.number
        delay_s = wait_s + random.uniform(0.0, min(RETRY_CAP_S, RETRY_BASE_S * 2**number))
        if reason is Return.DRAIN:
            delay_s = 0.0
        try:
            return self.ledger.give_back(
                execution.attempt.plan.job, execution.attempt.trial.index,
                fence=execution.attempt.fence, reason=reason, delay_s=delay_s,
                failed=failed,
            )  # fmt: skip
        except BrokerError:
            return False

    def _commit(self, execution: _Execution, receipt: Receipt) -> Receipt | Answer:
        commit = self._committed(execution, receipt)
        if commit.status is CommitStatus.FENCED or commit.receipt is None:
            logger.warning(
                "trial %s went to somebody else", execution.attempt.trial.id, extra=execution.log("fenced")
            )
            return Answer.IGNORED
        logger.info(
            "trial %s %s",
            execution.attempt.trial.id,
            commit.receipt.outcome,
            extra=execution.log("trial_committed"),
        )
        self._admit(execution)
        if commit.is_last and commit.state is not JobState.OPEN:
            self._gather(execution)
        return commit.receipt

    def _committed(self, execution: _Execution, receipt: Receipt) -> Commit:
        """Commit, waiting for a ledger that does not answer: the result is stored already."""
        deadline, wait_s = time.monotonic() + COMMIT_PATIENCE_S, 0.1
        kind = FAILURES.get(receipt.code)
        while True:
            try:
                return self.ledger.commit(
                    execution.attempt.plan.job, receipt, fence=execution.attempt.fence,
                    is_permanent=kind is not None and kind.is_permanent,
                )  # fmt: skip
            except BrokerError:
                if time.monotonic() > deadline:
                    return Commit(CommitStatus.FENCED, None)
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, 5.0)

    def _admit(self, execution: _Execution) -> None:
        """Publish what may start now; what fails here is repaired by the reconciler."""
        try:
            self.admitter.admit(execution.header.queue)
        except BrokerError as error:
            logger.warning("next trial not released: %s", error, extra=execution.log("not_released"))

    def _gather(self, execution: _Execution) -> None:
        """End a job that ended early: its chord misses the trials nobody ran."""
        try:
            self.dispatcher.gather_if_finished(execution.header)
        except BrokerError as error:
            logger.warning("job not gathered: %s", error, extra=execution.log("not_gathered"))

    def _cancelled(self, execution: _Execution) -> Receipt:
        attempt = execution.attempt
        wall_s = (utc_now() - attempt.started_at).total_seconds()
        folder = attempt.folder if execution.claim.status is ClaimStatus.GRANTED else ""
        return Receipt(
            attempt.trial.index, Outcome.CANCELLED.value, None, "", attempt.number, round(wall_s, 3),
            None, None, folder,
        )  # fmt: skip


def _asked_to_wait(result: TrialResult) -> float:
    """Return the seconds a provider asked to wait before another attempt; 0 = none did."""
    return max((failure.retry_after_s or 0.0 for failure in result.failures), default=0.0)


@dataclass(frozen=True, slots=True)
class _Execution:
    header: JobHeader
    attempt: Attempt
    lease: Lease
    claim: Claim
    spans: AttemptSpans

    def log(self, action: str) -> dict[str, str]:
        return {"action": action, "trial": self.attempt.trial.id, "job": self.attempt.plan.job}


def _failed(result: TrialResult, rollout: Rollout) -> Receipt:
    """Return the receipt of an attempt that is followed by another.

    What the agent used is counted once: with the attempt that judges its work again, where that can be.
    """
    receipt = Receipt.of(result)
    if not rollout.is_solver_kept:
        return receipt
    cost = None if receipt.cost_usd is None else 0.0
    return receipt._replace(cost_usd=cost, tokens=None if receipt.tokens is None else 0)


async def _until_stopped(
    attempt: Attempt, parts: Parts, folder: Path, *, lease: Lease, observe: Callable[[str], object]
) -> tuple[Rollout, frozenset[str]]:
    """Run an attempt, cancelled as soon as its lease has a reason to stop."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(run_attempt(attempt, parts, folder, observe))

    def cancel() -> None:
        # The loop may have closed in the very moment the reason came: then there is nothing to stop.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    lease.on_stop(cancel)
    return await task
