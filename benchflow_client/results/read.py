"""Reads a job back from its store: plan, summary, published trials, interrupted attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice

from pydantic import Field

from benchflow_client.errors import JobNotFoundError, ObjectNotFoundError, StoreError
from benchflow_client.schema.base import Document
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import SCORED, Receipt, TrialResult
from benchflow_client.store.base import Store
from benchflow_client.store.documents import decode, read_document
from benchflow_client.store.keys import relative_to
from benchflow_client.store.layout import attempt_prefix, job_prefix, plan_key, result_key, summary_key

_READ_AT_ONCE = 8
"""Results read at once: a remote store is bound by round trips."""

_BATCH = 256
"""Results read ahead of the one that is used."""


@dataclass(frozen=True, slots=True)
class JobResults:
    """What a store knows of a whole job."""

    plan: Plan
    summary: Summary | None  # None = the job is not closed yet


@dataclass(frozen=True, slots=True)
class PublishedTrial:
    """A finished trial: the receipt that counts, and the document behind it."""

    receipt: Receipt
    result: TrialResult | None  # None = its attempt left none, e.g. every worker died


class InterruptedAttempt(Document):
    """An attempt that began and left no result; a later attempt may have one."""

    folder: str = Field(description="Folder below the job's.")
    trial: str | None = Field(default=None, description="Trial id; None = its config.json is not readable.")
    task_name: str | None = Field(default=None, description="Task; None = not readable.")
    agent: str | None = Field(default=None, description="Label of the agent; None = not readable.")
    model: str | None = Field(default=None, description="LLM; None = agent's default or not readable.")
    attempt: int | None = Field(default=None, description="Which execution it was; None = not readable.")
    worker: str | None = Field(default=None, description="Worker that began it; None = not readable.")
    started_at: datetime | None = Field(default=None, description="When it began; None = not readable.")


def read_job(store: Store, job: str) -> JobResults:
    """Return plan and summary of a job, running or closed.

    Raises:
        JobNotFoundError: The store has no plan of that job.
        StoreError: A document cannot be read.
    """
    try:
        plan = read_document(store, plan_key(job), Plan)
    except ObjectNotFoundError as error:
        raise job_not_found(store, job) from error
    try:
        summary = read_document(store, summary_key(job), Summary)
    except ObjectNotFoundError:
        return JobResults(plan, None)
    return JobResults(plan, summary)


def job_not_found(store: Store, job: str) -> JobNotFoundError:
    """Return the error for a job the store does not hold."""
    return JobNotFoundError(
        f"The store {store.url} holds no job {job!r}.",
        hint="`bench jobs` lists the jobs; a job of another store needs that store's address.",
    )


def trial_results(store: Store, job: str, receipts: Iterable[Receipt]) -> Iterator[PublishedTrial]:
    """Yield the published trials of a job in the order of their receipts, reading ahead.

    Raises:
        StoreError: A result is there but cannot be read.
    """
    read = partial(_published, store, job)
    remaining = iter(receipts)
    with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="results") as pool:
        while batch := list(islice(remaining, _BATCH)):
            yield from pool.map(read, batch)


def stored_results(store: Store, plan: Plan, *, beside: Collection[str] = ()) -> Iterator[TrialResult]:
    """Yield the result of each trial that counts, in the plan's order, without asking the ledger.

    This lists the whole job. Of several results of a trial, one with a verdict counts before
    one without, then the newest: the published one unless a worker lost its lease after
    writing it; only the receipts know for certain (`trial_results`).

    Args:
        store: Where the job is.
        plan: Its plan.
        beside: Folders of attempts that are not looked at.

    Raises:
        StoreError: A result is there but cannot be read.
    """
    finished = attempt_folders(store, plan.job).finished.difference(beside)
    own = [[f for f in _own_folders(plan, index) if f in finished] for index in range(plan.size)]
    later = _later_results(store, plan, finished.difference(*own))
    for index, folders in enumerate(own):
        found = [later[index]] if index in later else []
        if folders and not (found and found[0].outcome in SCORED):
            found.append(read_document(store, result_key(plan.job, folders[0]), TrialResult))
        if found:
            yield max(found, key=_precedence)


def _own_folders(plan: Plan, index: int) -> Iterator[str]:
    """Yield the folders of a trial's attempts under its first ledger, the newest first."""
    trial = plan.trial(index)
    for attempt in range(plan.spec.max_attempts, 0, -1):
        yield trial.folder(attempt)


def _later_results(store: Store, plan: Plan, folders: Iterable[str]) -> dict[int, TrialResult]:
    """Return the results of a job that was reopened or taken up again, by trial; other jobs' are left out."""
    best: dict[int, TrialResult] = {}
    keys = (result_key(plan.job, folder) for folder in sorted(folders))
    with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="results") as pool:
        for result in pool.map(lambda key: read_document(store, key, TrialResult), keys):
            index = result.index
            if index >= plan.size or plan.trial(index).id != result.trial:
                continue
            if index not in best or _precedence(result) > _precedence(best[index]):
                best[index] = result
    return best


def _precedence(result: TrialResult) -> tuple[bool, datetime]:
    return result.outcome in SCORED, result.finished_at


@dataclass(frozen=True, slots=True)
class AttemptFolders:
    """Folders of attempts below a job, as the store lists them now."""

    finished: frozenset[str]  # with result.json
    unfinished: frozenset[str]  # with config.json only


def attempt_folders(store: Store, job: str) -> AttemptFolders:
    """Return which attempts of a job finished and which only began; lists the whole job."""
    bare = job_prefix(job).removesuffix("/")
    found: dict[str, set[str]] = {"config.json": set(), "result.json": set()}
    for key in store.list(job_prefix(job)):
        folder, _, name = relative_to(bare, key).partition("/")
        if name in found:
            found[name].add(folder)
    finished = frozenset(found["result.json"])
    return AttemptFolders(finished, frozenset(found["config.json"]) - finished)


def interrupted_attempts(
    store: Store, job: str, *, running: Collection[str] = ()
) -> tuple[InterruptedAttempt, ...]:
    """Return the attempts of a job that began and left no result, in order of folder.

    Args:
        store: Where the job is.
        job: Its name.
        running: Folders of attempts that a worker holds a lease on now; they are left out.
    """
    folders = attempt_folders(store, job).unfinished - set(running)
    return tuple(_interrupted(store, job, folder) for folder in sorted(folders))


def _published(store: Store, job: str, receipt: Receipt) -> PublishedTrial:
    if not receipt.folder:
        return PublishedTrial(receipt, None)
    try:
        result = read_document(store, result_key(job, receipt.folder), TrialResult)
    except ObjectNotFoundError:
        return PublishedTrial(receipt, None)
    return PublishedTrial(receipt, result)


def _interrupted(store: Store, job: str, folder: str) -> InterruptedAttempt:
    key = attempt_prefix(job, folder) + "config.json"
    data = store.get(key)
    try:
        config = decode(data, _AttemptConfig, place=repr(key))
    except StoreError:
        return InterruptedAttempt(folder=folder)  # cut off by what interrupted the attempt
    return InterruptedAttempt.model_validate({**config.model_dump(), "folder": folder})


class _AttemptConfig(InterruptedAttempt):
    """config.json of an attempt, which does not name its own folder."""

    folder: str = ""
