"""Lists: jobs, trials, workers, sandboxes, limits, findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from benchflow_client.report.blocks import Column, Line, Report, Row, Table, Tone
from benchflow_client.wording import NONE, age, ratio

if TYPE_CHECKING:  # the records are only read here
    from benchflow_client.ledger.base import JobProgress

_ID_CHARS = 20  # enough to find a sandbox by


class JobRow(NamedTuple):
    """One job in `bench jobs`."""

    job: str
    who: str
    state: str
    finished: int
    total: int
    running: int
    score: float | None  # passed / ended and not cancelled; None = none ended
    waiting_for: str = ""  # empty = nothing waits


class WorkerRow(NamedTuple):
    """One worker in `bench workers`."""

    worker: str
    queues: tuple[str, ...]
    slots: int  # open ones; fewer than `size` while draining
    size: int  # slots it was started with
    running: int
    state: str  # healthy, draining, silent, ...
    since_s: float | None  # seconds in that state; None = unknown
    note: str = ""  # who drains it and why


class LimitRow(NamedTuple):
    """One bucket in `bench limits`; None = no limit."""

    bucket: str
    live: int | None
    in_flight: int | None  # trials now; None = it counts none
    starts_per_s: float | None
    requests_per_min: float | None
    tokens_per_min: float | None
    requests_last_min: int | None  # None = they are not limited, and not counted
    tokens_last_min: int | None


class Check(NamedTuple):
    """One finding of `bench doctor` or `bench check`."""

    status: Literal["PASS", "WARN", "FAIL"]
    subject: str
    text: str
    fix: str = ""  # what to do; empty = nothing


def job_row(progress: JobProgress, *, waiting_for: str = "") -> JobRow:
    """Return the row of a job from its counts."""
    outcomes = progress.outcomes
    ended = progress.finished - sum(outcomes.get(name, 0) for name in ("cancelled", "not_started"))
    return JobRow(
        job=progress.header.job,
        who=progress.header.owner,
        state=_job_state(progress),
        finished=progress.finished,
        total=progress.header.total,
        running=progress.running,
        score=outcomes.get("passed", 0) / ended if ended else None,
        waiting_for=waiting_for if progress.waiting else "",
    )


def jobs_report(rows: Sequence[JobRow]) -> Report:
    """Return the table of jobs."""
    columns = (
        Column("job", shrink=2),
        Column("who", shrink=1, is_optional=True),
        Column("state"),
        Column("trials", "right"),
        Column(),
        Column("score", "right"),
        Column("waiting for", shrink=1),
    )
    return (Table(columns, tuple(_job_cells(row) for row in rows)),)


def workers_report(rows: Sequence[WorkerRow]) -> Report:
    """Return the table of workers."""
    columns = (
        Column("worker", shrink=2),
        Column("queues", shrink=1),
        Column("slots", "right"),
        Column("running", "right"),
        Column("state"),
        Column("since", shrink=1),
    )
    return (Table(columns, tuple(_worker_cells(row) for row in rows)),)


def trials_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the table of single trials, a row of `results.rows` each; `again` is the last regrade's reward."""
    is_judged_again = any("regrade.id" in row for row in rows)
    columns = (
        Column("task", shrink=2),
        Column("agent", shrink=1),
        Column("try", "right"),
        Column("outcome"),
        Column("reward", "right"),
        *((Column("again", "right"),) if is_judged_again else ()),
        Column("cause", shrink=3),
        Column("folder", shrink=4, is_optional=True),
    )
    return (Table(columns, tuple(_trial_cells(row, again=is_judged_again) for row in rows)),)


def sandboxes_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return the table of sandboxes; an orphan exists without a lease, a stale one is only on record."""
    columns = (
        Column("sandbox", shrink=2),
        Column("kind"),
        Column("state"),
        Column("trial", shrink=1),
        Column("worker", shrink=3),
    )
    cells = (
        (row["id"][:_ID_CHARS], *(row[name] for name in ("kind", "state", "trial", "worker"))) for row in rows
    )
    return (Table(columns, tuple(map(Row, cells))),)


def limits_report(rows: Sequence[LimitRow], closed: Mapping[str, float]) -> Report:
    """Return the table of limits with what is used of them, and who waits because a provider asked to."""
    columns = (
        Column("bucket", shrink=1),
        Column("in flight", "right"),
        Column("starts/s", "right"),
        Column("requests/min", "right"),
        Column("tokens/min", "right"),
    )
    cells = (
        (
            row.bucket,
            _used_of(row.in_flight, row.live),
            _cap(row.starts_per_s),
            _used_of(row.requests_last_min, row.requests_per_min),
            _used_of(row.tokens_last_min, row.tokens_per_min),
        )
        for row in rows
    )
    lines = (
        Line(
            f"{account}: calls wait {seconds:.0f} s more, as the provider asked", label="closed", tone="warn"
        )
        for account, seconds in sorted(closed.items())
    )
    return (*((Table(columns, tuple(map(Row, cells))),) if rows else ()), *lines)


def doctor_report(checks: Sequence[Check]) -> Report:
    """Return the findings, each with its fix below it."""
    tones: dict[str, Tone] = {"PASS": "good", "WARN": "warn", "FAIL": "bad"}
    width = max((len(check.subject) for check in checks), default=0)
    lines: list[Line] = []
    for check in checks:
        label = f"{check.status}  {check.subject:{width}}"
        lines.append(Line(check.text, label=label, tone=tones[check.status]))
        if check.fix:
            lines.append(Line(check.fix, label=" " * len(label)))
    return tuple(lines)


def _cap(number: float | None) -> str:
    return NONE if number is None else f"{number:,.15g}"


def _used_of(used: int | None, cap: float | None) -> str:
    if used is None:
        return _cap(cap)
    return f"{used:,}" if cap is None else f"{used:,} of {_cap(cap)}"


def _trial_cells(row: Mapping[str, Any], *, again: bool) -> Row:
    texts = (row["task"], row["agent"], str(row["try"]), row["outcome"], ratio(row["reward"]))
    later = (ratio(row.get("regrade.reward")),) if again else ()
    return Row((*texts, *later, row["code"] or NONE, row["folder"] or NONE))


def _job_state(progress: JobProgress) -> str:
    if progress.state == "open":
        return "running" if progress.running or progress.finished else "waiting"
    if progress.state == "closed":
        # A job taken up from the store has forgotten why it stopped; its trials tell that it did.
        is_stopped = progress.stop_cause or progress.outcomes.get("not_started")
        return "cancelled" if progress.cancelled_by else "stopped" if is_stopped else "done"
    return str(progress.state)


def _job_cells(row: JobRow) -> Row:
    running = f"(+{row.running})" if row.running else ""
    trials = f"{row.finished}/{row.total}"
    return Row((row.job, row.who, row.state, trials, running, ratio(row.score), row.waiting_for or NONE))


def _worker_cells(row: WorkerRow) -> Row:
    since = NONE if row.since_s is None else age(row.since_s)
    if row.note:
        since = f"{since} ({row.note})"
    slots = f"{row.slots}/{row.size}"
    return Row((row.worker, ",".join(row.queues), slots, str(row.running), row.state, since))
