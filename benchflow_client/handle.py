"""What a person holds of a job: live, or only its stored results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import JobNotFoundError, UsageError
from benchflow_client.ledger.base import JobProgress, JobState, Ledger, TrialCancel
from benchflow_client.plan.retry import find_trial, select_retries
from benchflow_client.report import JobRow, job_row
from benchflow_client.results.fetch import fetch_job
from benchflow_client.results.read import (
    JobResults,
    PublishedTrial,
    read_job,
    stored_results,
    trial_results,
)
from benchflow_client.results.regrades import Judgement, latest_judgements
from benchflow_client.schema.ids import is_job_name
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import Caps, account_of, cause_text, raised_budget
from benchflow_client.store.base import Store
from benchflow_client.store.layout import plan_key
from benchflow_client.summary import aggregate
from benchflow_client.watch import Snapshot, Watch, WatchView

LAST = "@last"
"""Stands for the job submitted last."""

POLL_S = 0.2
"""Seconds between two looks at a running job."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where jobs go: a ledger, a store, and how to publish."""

    ledger: Ledger
    store: Store
    dispatcher: Dispatcher
    label: str  # what it is, for people


class JobHandle:
    """A submitted job; any process with the fleet's address can have one."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name = name
        self._fleet = fleet

    def progress(self) -> JobProgress:
        """Return the counts of the job now."""
        return self._fleet.ledger.progress(self.name)

    def watch(self, *, poll_s: float = POLL_S) -> Iterator[WatchView]:
        """Yield what a watcher sees, again and again, until the job is closed.

        Raises:
            BrokerError: The ledger cannot be reached.
        """
        pace = Watch()
        while True:
            view = pace.observe(self._snapshot())
            yield view
            if view.is_over:
                return
            time.sleep(poll_s)

    def wait(self, *, timeout_s: float | None = None, poll_s: float = POLL_S) -> Summary:
        """Wait for the job's end and return its summary.

        Args:
            timeout_s: Give up after so many seconds; None = never.
            poll_s: Seconds between two looks.

        Raises:
            TimeoutError: The job runs on.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.progress().state is not JobState.CLOSED:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"job {self.name} still runs after {timeout_s:g} s")
            time.sleep(poll_s)
        summary = self.results().summary
        if summary is None:
            raise JobNotFoundError(
                f"Job {self.name!r} is closed, but its store has no summary.",
                hint="Check that this client and the workers use the same BENCHFLOW_STORE_URL.",
            )
        return summary

    def results(self) -> JobResults:
        """Return plan and summary; the summary is None while the job runs."""
        return read_job(self._fleet.store, self.name)

    def summary(self) -> Summary:
        """Return the numbers so far: the final summary once the job is closed."""
        found = self.results()
        if found.summary is not None:
            return found.summary
        progress = self.progress()
        receipts = self._fleet.ledger.receipts(self.name)
        elapsed_s = max(0.0, progress.last_finished_at - progress.header.created_at)
        return aggregate(found.plan, receipts, elapsed_s=elapsed_s, account=account_of(progress))

    def trials(self) -> Iterator[PublishedTrial]:
        """Yield every finished trial with its result document."""
        return trial_results(self._fleet.store, self.name, self._fleet.ledger.receipts(self.name))

    def regrades(self) -> Mapping[str, Judgement]:
        """Return trial id -> what the last `bench regrade` of it found; results stay as they were."""
        return latest_judgements(self._fleet.store, self.name)

    def cancel(self, *, by: str = "", reason: str = "") -> bool:
        """Stop the job: waiting trials at once, running ones within seconds.

        Args:
            by: Who cancels, for people; empty = nobody named.
            reason: Why, for people.

        Returns:
            False when it was closed or cancelled before.
        """
        ledger = self._fleet.ledger
        is_first = ledger.cancel(self.name, by=by, reason=reason)
        self._fleet.dispatcher.end_waiting(ledger.header(self.name))
        return is_first

    def cancel_trial(self, trial: str, *, by: str = "", reason: str = "") -> TrialCancel:
        """Stop one trial: at once when it waits, within seconds when it runs.

        Args:
            trial: Its id, as `bench results --trials` and Flower show it.
            by: Who cancels, for people; empty = nobody named.
            reason: Why, for people.

        Raises:
            UsageError: The job has no such trial.
        """
        plan = self.results().plan
        index = find_trial(plan, trial)
        header = self._fleet.ledger.header(self.name)
        return self._fleet.dispatcher.cancel_trial(header, plan, index, by=by, reason=reason)

    def pause(self, *, by: str = "", reason: str = "") -> bool:
        """Start no more trials until `resume`; running ones go on.

        Args:
            by: Who pauses, for people; empty = nobody named.
            reason: Why, for people.

        Returns:
            False when the job is not open.
        """
        return self._fleet.ledger.pause(self.name, by=by, reason=reason)

    def resume(self) -> bool:
        """End a pause; returns False when there is none."""
        is_resumed = self._fleet.ledger.resume(self.name)
        if is_resumed:
            self._fleet.dispatcher.release(self._fleet.ledger.header(self.name), self.results().plan)
        return is_resumed

    def set_caps(self, caps: Caps) -> None:
        """Replace caps of the job's budget; what it has spent stays.

        Raises:
            UsageError: With these caps nothing could start.
        """
        progress = self.progress()
        self._fleet.ledger.set_budget(self.name, raised_budget(progress, caps))
        if progress.state is JobState.OPEN:
            self._fleet.dispatcher.release(progress.header, self.results().plan)

    def retry(self, what: Sequence[str] = (), *, caps: Caps | None = None) -> int:
        """Run finished trials of a closed job again; their earlier folders stay.

        Args:
            what: Groups (`unscored`, `errored`, `cancelled`) and failure codes; empty = what
                another execution may change.
            caps: Caps of the budget to replace; None = none of them.

        Returns:
            How many trials will run again.

        Raises:
            UsageError: A word is unknown, the job is still running, or its budget is used up.
        """
        progress = self.progress()
        if progress.state is not JobState.CLOSED:
            raise UsageError(f"Job {self.name!r} still runs.", hint=f"Wait for it: bench watch {self.name}")
        indices = select_retries(self._fleet.ledger.receipts(self.name), what)
        if not indices:
            return 0
        if progress.header.budget.is_limited or caps is not None:
            self._fleet.ledger.set_budget(self.name, raised_budget(progress, caps or Caps()))
        return self._fleet.dispatcher.reopen(self.name, self.results().plan, indices)

    def fetch(self, folder: str | Path, *, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Copy all documents of the job into a folder and return how many are there."""
        return fetch_job(self._fleet.store, self.name, Path(folder), on_progress)

    def _snapshot(self) -> Snapshot:
        ledger = self._fleet.ledger
        progress = ledger.progress(self.name)
        # Asked for later, so that no trial is in the list and among the finished ones.
        running = ledger.running(self.name)
        progress = _matched(progress, len(running))
        reason = waiting_reason(progress, self._fleet) if progress.waiting else Reason()
        return Snapshot(progress, running, time.time(), reason.text, main_cause=reason.main_cause)


def _matched(progress: JobProgress, running: int) -> JobProgress:
    """Return counts that add up with a list of running trials, which was read at another moment."""
    left = progress.header.total - progress.finished
    return replace(progress, running=running, waiting=max(0, left - running))


class Reason(NamedTuple):
    """What a job's waiting trials wait for."""

    text: str = ""  # for people, e.g. `slots`, or `4 slots, 2 retry delay`
    main_cause: str = ""  # what most of them wait for


def waiting_reason(progress: JobProgress, fleet: Fleet) -> Reason:
    """Return what a job's waiting trials wait for, most trials first."""
    header = progress.header
    room = fleet.dispatcher.room(header.queue)
    if not room.is_served:
        return _one_reason(f"a worker for queue {header.queue}")
    if progress.paused_by:
        reason = f": {progress.pause_reason}" if progress.pause_reason else ""
        return _one_reason(f"paused by {progress.paused_by}{reason}")
    counts = {cause_text(cause): count for cause, count in fleet.ledger.waiting(header.job, room).items()}
    if len(counts) < 2:
        return _one_reason(next(iter(counts), ""))
    most_first = sorted(counts, key=lambda cause: (-counts[cause], cause))
    return Reason(", ".join(f"{counts[cause]} {cause}" for cause in most_first), most_first[0])


def _one_reason(text: str) -> Reason:
    return Reason(text, text)


def recorded_rows(fleet: Fleet) -> Sequence[JobRow]:
    """Return a row per job that a fleet knows, newest first."""
    known = (fleet.ledger.progress(job) for job in fleet.ledger.jobs())
    return [
        job_row(progress, waiting_for=waiting_reason(progress, fleet).text if progress.waiting else "")
        for progress in known
    ]


class StoredJob:
    """A job of which only the store is at hand; it can be read, not changed."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self._store = store

    def results(self) -> JobResults:
        """Return plan and summary; the summary is None when the job was never closed."""
        return read_job(self._store, self.name)

    def trials(self) -> Iterator[PublishedTrial]:
        """Yield every finished trial with its result document."""
        for result in stored_results(self._store, self.results().plan):
            yield PublishedTrial(Receipt.of(result), result)

    def regrades(self) -> Mapping[str, Judgement]:
        """Return trial id -> what the last `bench regrade` of it found; results stay as they were."""
        return latest_judgements(self._store, self.name)

    def summary(self) -> Summary:
        """Return the summary, counted anew from the results where none was written."""
        found = self.results()
        if found.summary is not None:
            return found.summary
        return aggregate(found.plan, [trial.receipt for trial in self.trials()], elapsed_s=0.0)

    def row(self) -> JobRow:
        """Return the job's line in a list: `stopped` when it, or its fleet, ended before its trials did."""
        summary = self.summary()
        cancelled = sum(group.cancelled for group in summary.groups)
        idle = cancelled + sum(group.not_started + group.unfinished for group in summary.groups)
        is_cut = bool(idle) or self.results().summary is None
        state = "cancelled" if cancelled else "stopped" if is_cut else "done"
        return JobRow(self.name, "", state, summary.planned - idle, summary.planned, 0, summary.score_ratio)

    def fetch(self, folder: str | Path, *, on_progress: Callable[[int, int], None] | None = None) -> int:
        """Copy all documents of the job into a folder and return how many are there."""
        return fetch_job(self._store, self.name, Path(folder), on_progress)


def stored_jobs(folder: Path) -> Sequence[str]:
    """Return the names of the jobs in a jobs folder, newest first."""
    plans = folder.glob("*/plan.json") if folder.is_dir() else ()
    newest_first = sorted(plans, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent.name for path in newest_first]


def is_stored(name: str, store: Store) -> bool:
    """Return whether a store has a job of exactly this name."""
    return is_job_name(name) and store.exists(plan_key(name))


def find_job(name: str, fleet: Fleet) -> JobHandle | StoredJob:
    """Return the job of a name: live where the fleet knows it, to read where only the store has it.

    Raises:
        JobNotFoundError: None matches, or several do.
    """
    jobs = fleet.ledger.jobs()
    if name not in jobs and is_stored(name, fleet.store):
        return StoredJob(name, fleet.store)
    return JobHandle(matching_job(name, jobs), fleet)


def recorded_job(name: str, fleet: Fleet) -> JobHandle:
    """Return the job of a name that the fleet knows.

    Raises:
        JobNotFoundError: None matches, several do, or only the store has it.
    """
    job = find_job(name, fleet)
    if isinstance(job, StoredJob):
        raise JobNotFoundError(
            f"Job {name!r} is in the store, but this fleet does not know it.",
            hint=f"Take it up: bench recover {name}",
        )
    return job


def matching_job(name: str, jobs: Sequence[str]) -> str:
    """Return the job that a name, a unique prefix of one, or `@last` stands for.

    Args:
        name: What a person gave.
        jobs: Names of the jobs there are, newest first.

    Raises:
        JobNotFoundError: None matches, or several do.
    """
    if name == LAST and jobs:
        return jobs[0]
    if name in jobs:
        return name
    matches = [job for job in jobs if job.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise JobNotFoundError(
            f"{name!r} is the beginning of {len(matches)} jobs: {', '.join(matches[:5])}.",
            hint="Give some more letters.",
        )
    raise JobNotFoundError(f"No job {name!r} on this fleet.", hint="`bench jobs` lists them.")
