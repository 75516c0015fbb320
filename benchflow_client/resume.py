"""Going on with a job that was sent before: what is kept of it, what runs again, how it gets there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchflow_client.dispatch import budget_of, job_header
from benchflow_client.errors import ResumeMismatchError, UsageError
from benchflow_client.handle import Fleet
from benchflow_client.ledger.admission import Budget
from benchflow_client.ledger.base import JobProgress, JobState, Ledger
from benchflow_client.plan.draft import Draft
from benchflow_client.plan.identity import CAPS, PACE, Difference, differences
from benchflow_client.plan.retry import Choice, choose
from benchflow_client.results.read import interrupted_attempts, read_job
from benchflow_client.results.receipts import stored_receipts
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.summary import BudgetReport
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import (
    Caps,
    check_budget,
    check_deadline,
    raised_budget,
    stored_spent,
    with_caps,
)
from benchflow_client.store.base import Store

_LISTED = 20  # differences named; others are counted


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that was sent before and does not run: it ended, was interrupted, or its ledger is lost."""

    plan: Plan
    receipts: Sequence[Receipt]  # of the trials that finished
    began: frozenset[str]  # ids of trials of which an attempt left no result
    is_recorded: bool  # the ledger knows it, closed
    has_summary: bool  # it came to its end once
    budget: BudgetReport | None = None  # of its summary; None = no summary, or the ledger knows better

    def choose(self, what: Sequence[str] = ()) -> Choice:
        """Decide what becomes of its trials; see `plan.retry.choose`."""
        return choose(self.plan, self.receipts, what, began=self.began)


def find_ended(name: str, store: Store, ledger: Ledger | None) -> EndedJob:
    """Return what is known of a job that does not run now.

    Args:
        name: Its full name.
        store: Where its documents are.
        ledger: The fleet's; None = no fleet runs.

    Raises:
        JobNotFoundError: The store has no such job.
        UsageError: It still runs, or is paused.
        StoreError: A document cannot be read.
    """
    found = read_job(store, name)
    if ledger is not None and name in ledger.jobs():
        check_ended(name, ledger.progress(name).state)
        receipts = ledger.receipts(name)
        return EndedJob(found.plan, receipts, frozenset(), is_recorded=True, has_summary=True)
    stored = stored_receipts(store, found)
    began: frozenset[str] = frozenset()
    if len(stored) < found.plan.size:
        began = frozenset(attempt.trial for attempt in interrupted_attempts(store, name) if attempt.trial)
    summary = found.summary
    return EndedJob(
        found.plan,
        stored,
        began,
        is_recorded=False,
        has_summary=summary is not None,
        budget=None if summary is None else summary.budget,
    )


def is_going_on(name: str, ledger: Ledger | None) -> bool:
    """Return whether a ledger knows a job that has not come to its end, paused or not."""
    return ledger is not None and name in ledger.jobs() and ledger.progress(name).state is not JobState.CLOSED


def check_ended(name: str, state: JobState) -> None:
    """Refuse a job that somebody still runs.

    Raises:
        UsageError: Says how to watch it or go on with it.
    """
    if state is JobState.PAUSED:
        raise UsageError(f"Job {name!r} is paused.", hint=f"Go on with it: bench resume {name}")
    if state is not JobState.CLOSED:
        raise UsageError(f"Job {name!r} still runs.", hint=f"Wait for it: bench watch {name}")


def resumed_draft(draft: Draft, job: EndedJob) -> Draft:
    """Return what a draft comes to when it goes on with a job: the job's own plan, and what becomes of its trials.

    Caps that were given replace the job's. So does the pace where the job has to be recorded anew; where the
    fleet has it on record its own stands, and a warning says so.

    Args:
        draft: What was asked for now.
        job: The job to go on with.

    Raises:
        ResumeMismatchError: The two are not the same job; names in what they differ.
    """
    found = differences(job.plan, draft.plan)
    if found:
        raise _mismatch(job.plan.job, found)
    choice = job.choose()
    asked = draft.plan.spec
    pace = {} if job.is_recorded else asked.model_dump(include=set(PACE))
    plan = _with_spec(job.plan, {**pace, **asked.model_dump(include=set(CAPS), exclude_none=True)})
    kept = _kept_pace(plan.spec, asked)
    return replace(draft, plan=plan, warnings=(*draft.warnings, *kept), resume=replace(choice, plan=plan))


def begin(fleet: Fleet, job: EndedJob, choice: Choice, *, owner: str, caps: Caps | None = None) -> None:
    """Let the chosen trials of a job run; the others keep their results.

    Args:
        fleet: Where it runs.
        job: The job.
        choice: What becomes of its trials; its plan's settings count from now on.
        owner: Who asked, where the job has to be recorded anew.
        caps: Caps of the job's budget to replace; None = none of them.

    Raises:
        UsageError: Somebody else took it up in the meantime, or its budget is used up.
        JobExistsError: Likewise, where the fleet had no record of it.
        BrokerError: The broker refused.
    """
    _check_stored_budget(job, choice, caps)
    if not job.is_recorded:
        given = {} if caps is None else {name: cap for name, cap in asdict(caps).items() if cap is not None}
        _record(fleet, job, replace(choice, plan=_with_spec(choice.plan, given)), owner=owner)
        return
    if not choice.again:
        return
    name, progress = job.plan.job, fleet.ledger.progress(job.plan.job)
    if (budget := new_budget(progress, caps)) is not None:
        fleet.ledger.set_budget(name, budget)
    if not fleet.dispatcher.reopen(name, job.plan, choice.again):
        check_ended(name, fleet.ledger.progress(name).state)


def new_budget(progress: JobProgress, caps: Caps | None) -> Budget | None:
    """Return the budget with which an ended job goes on; None = it has none, before or now.

    Raises:
        UsageError: It is used up.
    """
    if caps is None and not progress.header.budget.is_limited:
        return None
    return raised_budget(progress, caps or Caps())


def check_caps(job: EndedJob, choice: Choice, ledger: Ledger | None, caps: Caps | None) -> None:
    """Refuse, before anything starts, to run trials of a job again whose budget is used up.

    Raises:
        UsageError: It is used up, by what its ledger says or, where that is lost, its documents.
    """
    if job.is_recorded and ledger is not None and choice.again:
        new_budget(ledger.progress(job.plan.job), caps)
    _check_stored_budget(job, choice, caps)


def _check_stored_budget(job: EndedJob, choice: Choice, caps: Caps | None) -> None:
    if job.is_recorded or not {receipt.trial_index for receipt in job.receipts} & set(choice.again):
        return
    budget = budget_of(job.plan.spec)
    if budget.is_limited:
        stopped_by = job.budget.stopped_by if job.budget is not None else ""
        spent = stored_spent(job.budget, job.receipts)
        check_budget(job.plan.job, with_caps(budget, caps or Caps()), spent)
        check_deadline(job.plan.job, caps or Caps(), is_over=stopped_by == "deadline_s")


def caps_of(spec: JobSpec) -> Caps | None:
    """Return the caps a job asks for; None = none."""
    given = spec.model_dump(include=set(CAPS), exclude_none=True)
    return Caps(**given) if given else None


def _with_spec(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    return plan.model_copy(update={"spec": plan.spec.model_copy(update=dict(changes))})


def _record(fleet: Fleet, job: EndedJob, choice: Choice, *, owner: str) -> None:
    # Attempts of the lost ledger keep their folders: those of this one are named after another epoch.
    header = replace(job_header(choice.plan, owner=owner), epoch=int(time.time()))
    again = set(choice.again)
    if job.has_summary and len(job.receipts) == choice.plan.size:
        # Trials that run again were paid for: only a job with all its receipts knows what it has spent.
        fleet.ledger.restore_job(header, job.receipts)
        fleet.ledger.close_job(header.job)
        if again:
            fleet.dispatcher.reopen(header.job, choice.plan, choice.again)
        return
    kept = [receipt for receipt in job.receipts if receipt.trial_index not in again]
    fleet.dispatcher.restore(header, choice.plan, kept)


def _kept_pace(own: JobSpec, asked: JobSpec) -> Sequence[str]:
    before, after = (spec.model_dump(include=set(PACE)) for spec in (own, asked))
    return [
        f"{name} stays {before[name]}: the fleet has it on record with the job"
        for name in before
        if before[name] != after[name]
    ]


def _mismatch(name: str, found: Sequence[Difference]) -> ResumeMismatchError:
    problems = tuple(map(str, found[:_LISTED]))
    if len(found) > _LISTED:
        problems += (f"and {len(found) - _LISTED:,} more",)
    return ResumeMismatchError(
        f"Job {name!r} cannot be resumed: what was asked for now would be other trials.",
        problems=problems,
        hint="Ask for the same, or add --fresh to run it under a new name; nothing is deleted.",
    )
