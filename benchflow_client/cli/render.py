"""Everything a person or a program sees of a command; the only file that prints.

Text for people goes to stderr, data to stdout. Nothing is read as markup, so that
`[agent]` in a message stays `[agent]`, and no text from outside can steer the terminal.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from benchflow_client.cli.live import LiveProgress, PlainProgress, ProgressDisplay, is_unicode
from benchflow_client.cli.tables import clean, lay_out
from benchflow_client.errors import BenchflowError, ResumeMismatchError, TaskError
from benchflow_client.report import (
    Check,
    JobRow,
    Line,
    Report,
    WorkerRow,
    detached_report,
    doctor_report,
    done_report,
    failure_report,
    jobs_report,
    plan_report,
    summary_report,
    workers_report,
)

if TYPE_CHECKING:  # the records are only passed on, and pydantic is the slow part of starting
    from benchflow_client.schema.plan import Plan
    from benchflow_client.schema.summary import Summary

__all__ = [
    "human_console",
    "open_progress",
    "print_csv",
    "print_json",
    "print_json_lines",
    "print_text",
    "render_detached",
    "render_doctor",
    "render_done",
    "render_error",
    "render_failures",
    "render_jobs",
    "render_notice",
    "render_plan",
    "render_report",
    "render_summary",
    "render_warnings",
    "render_workers",
]

_LISTED_WARNINGS = 5  # of tasks, above a run
_LISTED_PROBLEMS = 20  # of broken tasks or keys that differ, below an error
_ASCII = str.maketrans({"–": "-", "—": "-", "…": "~", "·": "|", "×": "x", "≥": ">"})


def human_console() -> Console:
    """Return the console for people: stderr, 80 columns unless the terminal says more or less."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def render_report(report: Report, *, console: Console | None = None) -> None:
    """Show a report to a person.

    Paragraphs are wrapped on a terminal only: in a log they stay whole, for a search.
    """
    console = console or human_console()
    for line in lay_out(report, width=console.width, is_wrapped=console.is_terminal):
        _show(console, line)


def render_plan(plan: Plan, *, fleet: str = "", console: Console | None = None) -> None:
    """Show what is about to run and who will run it."""
    render_report(plan_report(plan, fleet=fleet), console=console)


def render_summary(summary: Summary, *, console: Console | None = None) -> None:
    """Show the numbers of a job, a row per agent."""
    render_report(summary_report(summary), console=console)


def render_failures(
    summary: Summary, *, evidence: Mapping[str, str] | None = None, console: Console | None = None
) -> None:
    """Show why trials have no verdict, by cause; nothing when all have one."""
    render_report(failure_report(summary, evidence=evidence), console=console)


def render_done(summary: Summary, *, folder: str, console: Console | None = None) -> None:
    """Show the last line of a run."""
    render_report(done_report(summary, folder=folder), console=console)


def render_detached(job: str, *, console: Console | None = None) -> None:
    """Show how to come back to a job that runs on."""
    render_report(detached_report(job), console=console)


def render_jobs(rows: Sequence[JobRow], *, console: Console | None = None) -> None:
    """Show the table of jobs."""
    render_report(jobs_report(rows), console=console)


def render_workers(rows: Sequence[WorkerRow], *, console: Console | None = None) -> None:
    """Show the table of workers."""
    render_report(workers_report(rows), console=console)


def render_doctor(checks: Sequence[Check], *, console: Console | None = None) -> None:
    """Show findings, PASS, WARN or FAIL, each with its fix."""
    render_report(doctor_report(checks), console=console)


def render_error(error: BenchflowError, *, console: Console | None = None) -> None:
    """Show what happened, then the single problems if there are several, then what to do."""
    lines = [Line(error.message, label="error", tone="bad")]
    if isinstance(error, TaskError | ResumeMismatchError):
        shown = error.problems[:_LISTED_PROBLEMS]
        lines.extend(Line(problem, label=" ") for problem in shown)
        if len(shown) < len(error.problems):
            lines.append(Line(f"... and {len(error.problems) - len(shown)} more", label=" "))
    if error.hint:
        lines.append(Line(error.hint, label=" "))
    render_report(tuple(lines), console=console)


def render_notice(text: str, *, console: Console | None = None) -> None:
    """Show one line that says what was done."""
    render_report((Line(text),), console=console)


def render_warnings(warnings: Sequence[str], *, console: Console | None = None) -> None:
    """Show what the authors of tasks should know, the first few."""
    lines = [Line(text, label="warning", tone="warn") for text in warnings[:_LISTED_WARNINGS]]
    if len(warnings) > _LISTED_WARNINGS:
        lines.append(Line(f"{len(warnings) - _LISTED_WARNINGS} more warnings: bench check", tone="dim"))
    render_report(tuple(lines), console=console)


def open_progress(*, console: Console | None = None) -> ProgressDisplay:
    """Return what shows a running job here: a redrawn block on a terminal, else plain lines."""
    console = console or human_console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveProgress(console)
    return PlainProgress(lambda line: _show(console, Text(clean(line))))


def print_text(text: str) -> None:
    """Write one line to stdout, for other programs."""
    print(clean(text))


def print_json(data: Any) -> None:
    """Write one JSON document to stdout; ASCII only, so that any locale carries it.

    Args:
        data: Plain JSON data, e.g. `Summary.model_dump(mode="json")` or `report_data(report)`.
    """
    print(json.dumps(data, indent=2, allow_nan=False))


def print_json_lines(rows: Iterable[Any]) -> None:
    """Write one JSON document a line to stdout, each as soon as it is there."""
    for row in rows:
        print(json.dumps(row, separators=(",", ":"), allow_nan=False), flush=True)


def print_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout as CSV (RFC 4180, but with LF); None is an empty field."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)


def _show(console: Console, line: Text) -> None:
    if not is_unicode(console):
        line.plain = line.plain.translate(_ASCII)
    console.print(line, soft_wrap=True)
