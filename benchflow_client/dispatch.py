"""Release trials as Celery messages and gather them in a chord: the only file that touches canvas.

The chord's size is set before anything is published, and every id is derived from the
plan. So a trial can be published at any time, by anybody, twice or more: it is always
the same message, counted once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence

from celery import Celery

from benchflow_client.broker import BROKER_ERRORS, CONTROL_QUEUE, SUMMARY, TRIAL, queue_depth
from benchflow_client.errors import BrokerError, JobExistsError
from benchflow_client.ledger.base import CommitStatus, JobHeader, JobState, Ledger
from benchflow_client.schema.base import SCHEMA_VERSION
from benchflow_client.schema.plan import Plan, PlannedTrial
from benchflow_client.schema.trial import Outcome, Receipt

logger = logging.getLogger(__name__)

_RELEASE_BATCH = 1000
"""Trials released in one ledger step."""


def job_header(plan: Plan, *, owner: str) -> JobHeader:
    """Return the ledger's header of a planned job; `created_at` is set on opening."""
    return JobHeader(
        job=plan.job,
        total=plan.size,
        concurrency=plan.spec.concurrency,
        max_attempts=plan.spec.max_attempts,
        owner=owner,
        queue=plan.sandbox,
        group_id=str(uuid.uuid4()),
        body_id=f"{plan.job}.summary",
        title=" ".join([plan.source.path, *(agent.label for agent in plan.agents)]),
        created_at=0.0,
    )


class Dispatcher:
    """Sends what the ledger releases.

    Args:
        app: A Celery app of `broker.make_app`.
        ledger: The ledger on the same broker.
    """

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    def open(self, header: JobHeader, plan: Plan) -> int:
        """Record a job and publish its first trials.

        Returns:
            How many were published. Once the job is recorded it stands: when the broker
            takes no message then, the workers publish its trials later.

        Raises:
            JobExistsError: The name is taken; nothing was recorded or published.
            BrokerError: The broker failed; the job is not recorded.
        """
        backend = self._app.backend
        try:
            backend.set_chord_size(header.group_id, header.total)
        except BROKER_ERRORS as error:
            raise _refused(error) from error
        try:
            self._ledger.open_job(header)
        except JobExistsError:
            backend.delete(backend.get_key_for_group(header.group_id, ".s"))
            raise
        try:
            return self.release(header, plan)
        except BrokerError as error:
            logger.warning(
                "job %s is recorded, but its trials wait for the workers' next look: %s", header.job, error,
                extra={"action": "not_released", "job": header.job},
            )  # fmt: skip
            return 0

    def restore(self, header: JobHeader, plan: Plan, receipts: Sequence[Receipt]) -> int:
        """Record a job the ledger has lost and let what is not finished run.

        Returns:
            How many trials were published.

        Raises:
            JobExistsError: The ledger knows the job.
        """
        try:
            self._app.backend.set_chord_size(header.group_id, max(1, header.total - len(receipts)))
        except BROKER_ERRORS as error:
            raise _refused(error) from error
        self._ledger.restore_job(header, receipts)
        self._ledger.resume(header.job)
        return self.release(header, plan)

    def reopen(self, job: str, plan: Plan, indices: Sequence[int]) -> int:
        """Let finished trials of a closed job run again, under a new chord.

        Returns:
            How many will; 0 = the job is not closed.
        """
        group_id = str(uuid.uuid4())
        try:
            self._app.backend.set_chord_size(group_id, len(indices))
            count = self._ledger.reopen(job, indices, group_id=group_id)
            if 0 < count < len(indices):
                self._app.backend.set_chord_size(group_id, count)
        except BROKER_ERRORS as error:
            raise _refused(error) from error
        if count:
            self.release(self._ledger.header(job), plan)
        return count

    def release(self, header: JobHeader, plan: Plan) -> int:
        """Publish every trial that may start now and return how many."""
        count = 0
        while indices := self._ledger.release(header.job, limit=_RELEASE_BATCH):
            self.publish(header, plan, indices)
            count += len(indices)
            if len(indices) < _RELEASE_BATCH:
                break
        return count

    def publish(self, header: JobHeader, plan: Plan, indices: Iterable[int]) -> None:
        """Send the messages of trials; sending one twice is harmless."""
        body = self._body(header)
        try:
            with self._app.producer_pool.acquire(block=True, timeout=30) as producer:
                for index in indices:
                    self._app.send_task(
                        TRIAL,
                        args=(header.job, index, SCHEMA_VERSION),
                        queue=header.queue,
                        task_id=plan.trial(index).id,
                        group_id=header.group_id,
                        group_index=index,
                        chord=body,
                        argsrepr=short_args(plan, plan.trial(index)),
                        kwargsrepr="",
                        ignore_result=True,
                        add_to_parent=False,
                        producer=producer,
                    )
        except BROKER_ERRORS as error:
            raise _refused(error) from error

    def gather(self, header: JobHeader) -> None:
        """Publish the chord's body by itself; running it twice is harmless."""
        try:
            self._app.send_task(
                SUMMARY,
                args=(None, header.job),
                queue=CONTROL_QUEUE,
                task_id=header.body_id,
                argsrepr=header.job,
                kwargsrepr="",
                ignore_result=True,
                add_to_parent=False,
            )
        except BROKER_ERRORS as error:
            raise _refused(error) from error

    def gather_if_finished(self, header: JobHeader) -> bool:
        """Publish the chord's body when every trial has a receipt; returns whether it did."""
        progress = self._ledger.progress(header.job)
        is_due = progress.finished == header.total and progress.state is not JobState.CLOSED
        if is_due:
            self.gather(header)
        return is_due

    def cancel_waiting(self, header: JobHeader) -> int:
        """Commit a cancelled receipt for every trial of a cancelled job that nobody runs.

        Returns:
            How many were committed; safe to call twice and by several at once.
        """
        count = 0
        while indices := self._ledger.sweep_cancelled(header.job, limit=_RELEASE_BATCH):
            for index in indices:
                receipt = Receipt(index, Outcome.CANCELLED.value, None, "", 0, 0.0, None, None, "")
                done = self._ledger.commit(header.job, receipt, fence=0)
                count += int(done.status is CommitStatus.COMMITTED)
        self.gather_if_finished(header)
        return count

    def depth(self, queue: str) -> int:
        """Return how many messages wait in a queue."""
        try:
            return queue_depth(self._app, queue)
        except BROKER_ERRORS as error:
            raise _refused(error) from error

    def _body(self, header: JobHeader) -> object:
        body = self._app.signature(
            SUMMARY, args=(header.job,), queue=CONTROL_QUEUE, argsrepr=header.job, ignore_result=True
        )
        body.freeze(header.body_id, group_id=header.group_id)
        return body


def short_args(plan: Plan, trial: PlannedTrial) -> str:
    """Return what Flower shows as the arguments of a trial, e.g. `fix-build claude 2/5`."""
    return f"{trial.task.slug} {trial.agent.slug} {trial.try_number}/{plan.spec.tries}"


def _refused(error: Exception) -> BrokerError:
    return BrokerError(
        f"The broker took no message ({type(error).__name__}).",
        hint="Check that it runs and has memory left: `bench doctor`.",
    )
