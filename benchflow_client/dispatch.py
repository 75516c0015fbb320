"""Release trials as Celery messages and gather them in a chord: the only file that touches canvas.

The chord's size is set before anything is published, and every id is derived from the
plan. So a trial can be published at any time, by anybody, twice or more: it is always
the same message, counted once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from celery import Celery
from kombu.messaging import Producer

from benchflow_client.broker import BROKER_ERRORS, CONTROL_QUEUE, SUMMARY, TRIAL, queue_depth
from benchflow_client.catalog.providers import buckets_of
from benchflow_client.errors import BrokerError, JobExistsError, JobNotFoundError, StoreError
from benchflow_client.ledger.admission import Budget, Room
from benchflow_client.ledger.base import JobHeader, JobState, Ledger, TrialCancel
from benchflow_client.schema.base import SCHEMA_VERSION
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTrial
from benchflow_client.schema.trial import Receipt

logger = logging.getLogger(__name__)

_RELEASE_BATCH = 1000
"""Trials released in one ledger step."""

_SLOTS_KNOWN_S = 2.0
"""How long a queue's slots are believed without asking again."""


class Plans(Protocol):
    """Finds header and plan of jobs whose trials are to be published."""

    def get(self, job: str) -> tuple[JobHeader, Plan]:
        """Return them; they may be remembered ones."""
        ...

    def forget(self, job: str) -> None:
        """Let the next `get` read them anew."""
        ...


def job_header(plan: Plan, *, owner: str) -> JobHeader:
    """Return the ledger's header of a planned job; `created_at` is set on opening."""
    return JobHeader(
        job=plan.job,
        total=plan.size,
        concurrency=plan.spec.concurrency,
        max_attempts=plan.spec.max_attempts,
        owner=owner,
        queue=plan.queue,
        group_id=str(uuid.uuid4()),
        body_id=f"{plan.job}.summary",
        title=" ".join([plan.source.path, *(agent.label for agent in plan.agents)]),
        created_at=0.0,
        weight=plan.spec.weight,
        priority=plan.spec.priority,
        lanes=tuple(_buckets(agent) for agent in plan.agents),
        breaker=plan.spec.stop_after_failures,
        budget=budget_of(plan.spec),
    )


def budget_of(spec: JobSpec) -> Budget:
    """Return what a job may spend."""
    return Budget(
        cost_usd=spec.max_cost_usd,
        tokens=spec.max_tokens,
        sandbox_s=spec.max_sandbox_seconds,
        trials=spec.max_trials,
        deadline_s=spec.deadline_s,
        trial_cost_usd=spec.trial_cost_usd,
        trial_tokens=spec.trial_tokens,
    )


def _buckets(agent: PlannedAgent) -> tuple[str, ...]:
    """Return the buckets of an agent's trials: those of its model."""
    model = agent.spec.model
    return () if model is None else buckets_of(model)


@dataclass(frozen=True, slots=True)
class _OnePlan:
    """The one job a client publishes for."""

    header: JobHeader
    plan: Plan

    def get(self, job: str) -> tuple[JobHeader, Plan]:
        del job
        return self.header, self.plan

    def forget(self, job: str) -> None:
        del job


class Dispatcher:
    """Sends what the ledger releases.

    Args:
        app: A Celery app of `broker.make_app`.
        ledger: The ledger on the same broker.
    """

    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger
        self._slots: dict[str, tuple[int, float]] = {}  # queue -> slots, believed until

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
            if count == 0:
                self._app.backend.delete(self._app.backend.get_key_for_group(group_id, ".s"))
            elif count < len(indices):
                self._app.backend.set_chord_size(group_id, count)
        except BROKER_ERRORS as error:
            raise _refused(error) from error
        if count:
            self.release(self._ledger.header(job), plan)
        return count

    def release(self, header: JobHeader, plan: Plan) -> int:
        """Publish every trial of one job that may start now and return how many.

        For those that know this job alone; trials of other jobs keep their places.
        """
        return self.admit(header.queue, _OnePlan(header, plan), only=header.job)[0]

    def admit(self, queue: str, plans: Plans, *, only: str = "") -> tuple[int, float | None]:
        """Publish every trial of a queue that may start now; end jobs whose budget is used up.

        Args:
            queue: The queue.
            plans: Finds the jobs' plans.
            only: The only job to take trials of; empty = any.

        Returns:
            How many were published, and the seconds until time alone may admit more (None = no such).
        """
        count, room = 0, self.room(queue)
        while True:
            found = self._ledger.admit(room, limit=_RELEASE_BATCH, only=only)
            for (job, group_id), trials in groupby(
                found.trials, key=lambda trial: (trial.job, trial.group_id)
            ):
                try:
                    header, plan = _present(plans, job, group_id)
                except (StoreError, JobNotFoundError) as error:
                    # The reconciler publishes these later; other jobs go on meanwhile.
                    logger.warning("job %s: %s", job, error, extra={"action": "not_published", "job": job})
                else:
                    self.publish(header, plan, [trial.index for trial in trials])
            for job in found.stopped:
                logger.info("job %s stops", job, extra={"action": "job_stops", "job": job})
                self.end_waiting(self._ledger.header(job))
            count += len(found.trials)
            if len(found.trials) < _RELEASE_BATCH:
                return count, found.wait_s

    def room(self, queue: str) -> Room:
        """Return how much may be in flight on a queue, by the workers that serve it now."""
        slots, until = self._slots.get(queue, (0, 0.0))
        if time.monotonic() >= until:
            workers = self._ledger.workers()
            slots = sum(
                worker.slots for worker in workers if queue in worker.queues and not worker.is_leaving
            )
            self._slots[queue] = (slots, time.monotonic() + _SLOTS_KNOWN_S)
        return Room.of(queue, slots)

    def publish(self, header: JobHeader, plan: Plan, indices: Iterable[int]) -> None:
        """Send the messages of trials; sending one twice is harmless."""
        body, chosen = self._body(header), tuple(indices)

        def send(producer: Producer) -> None:
            for index in chosen:
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

        self._send(send)

    def gather(self, header: JobHeader) -> None:
        """Publish the chord's body by itself; running it twice is harmless."""

        def send(producer: Producer) -> None:
            self._app.send_task(
                SUMMARY,
                args=(None, header.job),
                queue=CONTROL_QUEUE,
                task_id=header.body_id,
                argsrepr=header.job,
                kwargsrepr="",
                ignore_result=True,
                add_to_parent=False,
                producer=producer,
            )

        self._send(send)

    def gather_if_finished(self, header: JobHeader) -> bool:
        """Publish the chord's body when every trial has a receipt; returns whether it did."""
        progress = self._ledger.progress(header.job)
        is_due = progress.finished == header.total and progress.state is not JobState.CLOSED
        if is_due:
            self.gather(header)
        return is_due

    def end_waiting(self, header: JobHeader) -> int:
        """Commit a receipt for every trial that nobody runs, of a job that ends early.

        Returns:
            How many were committed; safe to call twice and by several at once.
        """
        count = 0
        while swept := self._ledger.sweep(header.job, limit=_RELEASE_BATCH):
            count += swept
        self.gather_if_finished(header)
        return count

    def cancel_trial(self, header: JobHeader, plan: Plan, index: int, *, by: str, reason: str) -> TrialCancel:
        """Cancel one trial: a waiting one at once, a running one at its worker's next renewal."""
        answer = self._ledger.cancel_trial(header.job, index, by=by, reason=reason)
        if answer is TrialCancel.WAITING:
            # Its message brings the receipt to the chord, which counts every trial.
            self.publish(header, plan, [index])
        return answer

    def depth(self, queue: str) -> int:
        """Return how many messages wait in a queue."""
        try:
            return queue_depth(self._app, queue)
        except BROKER_ERRORS as error:
            raise _refused(error) from error

    def _send(self, send: Callable[[Producer], None]) -> None:
        """Publish by a producer of the pool, or by one of its own where that one is broken.

        Raises:
            BrokerError: The broker took not all of it.
        """
        try:
            try:
                with self._app.producer_pool.acquire(block=True, timeout=30) as producer:
                    send(producer)
            except AttributeError:
                # kombu 5.7: after a restart of Redis a producer of the pool may hold a channel without
                # a connection (`Channel.connection is None`). Can go when its test passes without.
                with self._app.connection_for_write() as connection:
                    send(self._app.amqp.Producer(connection, auto_declare=False))
        except BROKER_ERRORS as error:
            raise _refused(error) from error

    def _body(self, header: JobHeader) -> object:
        body = self._app.signature(
            SUMMARY, args=(header.job,), queue=CONTROL_QUEUE, argsrepr=header.job, ignore_result=True
        )
        body.freeze(header.body_id, group_id=header.group_id)
        return body


def _present(plans: Plans, job: str, group_id: str) -> tuple[JobHeader, Plan]:
    """Return header and plan of a job as it is now: reopened since it was read, or another of its name."""
    header, plan = plans.get(job)
    if header.group_id != group_id:
        plans.forget(job)
        header, plan = plans.get(job)
    return header, plan


def short_args(plan: Plan, trial: PlannedTrial) -> str:
    """Return what Flower shows as the arguments of a trial, e.g. `fix-build claude 2/5`."""
    return f"{trial.task.slug} {trial.agent.slug} {trial.try_number}/{plan.spec.tries}"


def _refused(error: Exception) -> BrokerError:
    return BrokerError(
        f"The broker took no message ({type(error).__name__}).",
        hint="Check that it runs and has memory left: `bench doctor`.",
    )
