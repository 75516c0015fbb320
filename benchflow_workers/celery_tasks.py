"""The two Celery tasks: one runs a trial, one gathers a job."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from benchflow_client.broker import BROKER_ERRORS, SUMMARY, TRIAL
from benchflow_client.errors import StoreError
from benchflow_client.schema.trial import Receipt
from benchflow_workers.context import context
from benchflow_workers.delivery import Answer
from benchflow_workers.gather import summarize
from benchflow_workers.lease import PhaseListener

logger = logging.getLogger(__name__)


class Part:
    """What a trial returns to its chord: `[index, outcome, reward]`, readable in Flower."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def __json__(self) -> list[object]:
        """Return what travels; kombu's encoder asks for it."""
        return [self._receipt.trial_index, self._receipt.outcome, self._receipt.reward]

    def __repr__(self) -> str:
        receipt = self._receipt
        verdict = receipt.outcome if receipt.reward is None else f"reward {receipt.reward:g}"
        cost = "" if receipt.cost_usd is None else f" · ${receipt.cost_usd:.2f}"
        minutes, seconds = divmod(round(receipt.wall_s), 60)
        return f"{verdict}{cost} · {f'{minutes}m{seconds:02d}s' if minutes else f'{seconds}s'}"


def register(app: Celery) -> None:
    """Add the tasks to an app."""
    app.task(bind=True, name=TRIAL, ignore_result=True)(run_trial)
    app.task(name=SUMMARY, ignore_result=True)(summarize_job)


def run_trial(task: Task, job: str, index: int, schema_version: int) -> Part:
    """Run one trial of a job; a failing trial is data, so this returns and does not raise."""
    del schema_version  # readers of version 1 know only one layout
    answer = context().deliveries.take(job, index, _phase_events(task))
    if answer is Answer.REQUEUED:
        raise Reject(reason="the worker stops", requeue=True)
    if not isinstance(answer, Receipt):
        raise Ignore
    return Part(answer)


def _phase_events(task: Task) -> PhaseListener:
    """Return what shows phases as states in Flower; called from another thread than the task's."""
    app, uuid, hostname = task.app, task.request.id, task.request.hostname

    def send(phase: str) -> None:
        try:
            with app.events.default_dispatcher(hostname=hostname) as dispatcher:
                dispatcher.send(f"task-{phase}", uuid=uuid)
        except BROKER_ERRORS:
            logger.debug("phase %s of %s not shown", phase, uuid)

    return send


def summarize_job(parts: list[list[Any]] | None, job: str) -> None:
    """Write the summary of a job whose trials have all returned.

    A store that does not take it leaves the job open; the reconciler tries again.
    """
    here = context()
    try:
        summarize(job, parts, ledger=here.ledger, store=here.store, jobs=here.jobs)
    except StoreError as error:
        logger.error(
            "summary of %s not written, tried again soon: %s", job, error,
            extra={"action": "not_summarized", "job": job},
        )  # fmt: skip
