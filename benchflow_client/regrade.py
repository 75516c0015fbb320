"""Sends a regrade: a job whose trials judge the kept workspaces of another one."""

from __future__ import annotations

from benchflow_client.dispatch import job_header
from benchflow_client.errors import UsageError
from benchflow_client.handle import Fleet, JobHandle, StoredJob
from benchflow_client.plan.draft import Draft
from benchflow_client.plan.regrade import idle_receipts
from benchflow_client.plan.submit import store_draft
from benchflow_client.results.regrades import RegradeSummary, regrade_summary
from benchflow_client.schema.trial import TrialResult
from benchflow_client.store.base import Store

__all__ = ["found_by", "results_of", "send_regrade"]


def results_of(job: JobHandle | StoredJob) -> list[TrialResult]:
    """Return the results of a job's finished trials."""
    return [trial.result for trial in job.trials() if trial.result is not None]


def found_by(store: Store, handle: JobHandle) -> RegradeSummary:
    """Return what a finished regrade changed.

    Raises:
        UsageError: The job is no regrade.
    """
    plan = handle.results().plan
    if plan.regrade is None:
        raise UsageError(f"Job {handle.name!r} is no regrade.", hint="Begin one: bench regrade JOB")
    return regrade_summary(store, plan, plan.regrade, [trial.receipt for trial in handle.trials()])


def send_regrade(fleet: Fleet, draft: Draft, *, owner: str) -> JobHandle:
    """Store the plan of a regrade and let its trials run.

    Args:
        fleet: Where it runs.
        draft: The plan.
        owner: Who asked.

    Raises:
        InfrastructureError: Broker or store refuse; nothing is left half-written.
    """
    header, idle = job_header(draft.plan, owner=owner), idle_receipts(draft.plan)

    def open_job() -> None:
        if idle:
            fleet.dispatcher.restore(header, draft.plan, idle)
        else:
            fleet.dispatcher.open(header, draft.plan)

    store_draft(draft, fleet.store, open_job)
    return JobHandle(draft.plan.job, fleet)
