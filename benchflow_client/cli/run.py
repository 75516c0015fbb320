"""`bench run` and `bench submit`: plan, show, send, watch, tell."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import with_spec_flags
from benchflow_client.cli.resuming import choice_data, choice_report, resumed_report
from benchflow_client.errors import BenchflowError
from benchflow_client.handle import Fleet, JobHandle
from benchflow_client.plan.draft import Draft
from benchflow_client.plan.retry import Choice
from benchflow_client.results.evidence import evidence_of
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.summary import Summary

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def view_flag(name: str, kind: Any, help_text: str, *names: str) -> inspect.Parameter:
    """Return a flag that is no part of a job."""
    parameter = Parameter(name=names or None, help=help_text, negative=(), show_default=False)
    default = False if kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, parameter], default=default
    )


VIEW = {
    "file": view_flag("file", Path | None, "Job file in YAML; flags win over it.", "--file", "-f"),
    "dry_run": view_flag(
        "dry_run", bool, "Show the plan, and what would be kept of a resumed job, and stop."
    ),
    "json": view_flag("json", bool, "Write the result as JSON to stdout."),
    "resume": view_flag(
        "resume",
        str | None,
        "Go on with this job (name, unique prefix or @last): finished trials are kept, except those "
        "without a verdict that another execution may change. Refused when what was asked for differs "
        "in anything that changes a score.",
    ),
    "fresh": view_flag(
        "fresh",
        bool,
        "Make a new job in any case: under a new name where --job-name is taken, and with --resume too.",
    ),
}
"""Flags that are no part of the job."""


@dataclass(frozen=True, slots=True)
class _Sending:
    """How a job is sent, and what is shown of it.

    Attributes:
        is_json: Whether the result goes to stdout as JSON.
        resume: Job to go on with; None = a new one.
        is_fresh: Whether it is a new job in any case.
    """

    is_json: bool
    resume: str | None
    is_fresh: bool


def run_job(spec: JobSpec, *, dry_run: bool, json: bool, resume: str | None, fresh: bool) -> int:
    """Run a job and show its numbers; Ctrl-C leaves a fleet's job running."""
    sending = _Sending(json, resume, fresh)
    if dry_run:
        return _show_plan(spec, sending)
    with Client() as client:
        try:
            handle, choice = _send(client, spec, sending)
        except KeyboardInterrupt:
            return _interrupted_early(sending)
        folder = Path(spec.jobs_dir) / handle.name
        return follow_to_end(client, handle, folder=folder, is_json=json, choice=choice)


def submit_job(spec: JobSpec, *, dry_run: bool, json: bool, resume: str | None, fresh: bool) -> int:
    """Submit a job to the fleet and return at once."""
    sending = _Sending(json, resume, fresh)
    if dry_run:
        return _show_plan(spec, sending)
    client = Client()
    try:
        handle, _ = _send(client, spec, sending)
    except KeyboardInterrupt:
        client.close()
        return _interrupted_early(sending)
    except BaseException:
        client.close()
        raise
    client.detach()
    if json:
        render.print_json({"job": handle.name})
    else:
        render.print_text(handle.name)
        render.render_detached(handle.name)
    return 0


def follow_to_end(
    client: Client, handle: JobHandle, *, folder: Path, is_json: bool = False, choice: Choice | None = None
) -> int:
    """Watch a job to its end, copy its documents, show its numbers, and return its exit code.

    Args:
        client: Whose job it is.
        handle: The job.
        folder: Where its documents are copied to.
        is_json: Whether the summary goes to stdout as JSON.
        choice: What was kept of a job that goes on; None = a new job.
    """
    try:
        summary = follow(handle)
    except KeyboardInterrupt:
        return interrupted(client, handle)
    handle.fetch(folder)
    code = show_results(handle, summary, folder=str(folder), is_json=is_json)
    if choice is not None:
        render.render_report(resumed_report(choice, summary))
    return code


def show_results(handle: JobHandle, summary: Summary, *, folder: str, is_json: bool) -> int:
    """Show a closed job and return the exit code of its run."""
    if is_json:
        render.print_json(summary.model_dump(mode="json"))
    render.render_summary(summary)
    render.render_failures(summary, evidence=evidence_of(handle.trials, summary))
    render.render_done(summary, folder=folder)
    return exit_code(summary)


def exit_code(summary: Summary) -> int:
    """Return 0 when every trial that nobody cancelled has a verdict, else 1."""
    not_started = sum(group.not_started for group in summary.groups)
    return 1 if summary.all_without_verdict or not_started else 0


def _send(client: Client, spec: JobSpec, sending: _Sending) -> tuple[JobHandle, Choice | None]:
    """Send a job and say what was sent; returns what is kept of a resumed one."""
    drafts: list[Draft] = []

    def announce(draft: Draft, fleet: Fleet) -> None:
        drafts.append(draft)
        _show_draft(draft, fleet=fleet.label)

    handle = client.submit(spec, resume=sending.resume, fresh=sending.is_fresh, on_draft=announce)
    return handle, drafts[0].resume


def _show_plan(spec: JobSpec, sending: _Sending) -> int:
    with Client() as client:
        draft = client.draft(spec, resume=sending.resume, fresh=sending.is_fresh)
    if sending.is_json:
        resume = {} if draft.resume is None else {"resume": choice_data(draft.resume)}
        render.print_json({**draft.plan.model_dump(mode="json"), **resume})
    else:
        _show_draft(draft, fleet="")
    return 0


def _show_draft(draft: Draft, *, fleet: str) -> None:
    render.render_plan(draft.plan, fleet=fleet)
    if draft.resume is not None:
        render.render_report(choice_report(draft.resume))
    render.render_warnings(draft.warnings)


def _interrupted_early(sending: _Sending) -> int:
    if sending.resume is None or sending.is_fresh:
        render.render_notice("interrupted before anything was submitted")
    else:
        render.render_notice("interrupted while the job was taken up again · look: bench jobs")
    return INTERRUPTED


def follow(handle: JobHandle) -> Summary:
    """Show a job's progress until it ends, and return its summary."""
    with render.open_progress() as display:
        for view in handle.watch():
            display.update(view)
    return handle.wait()


def interrupted(client: Client, handle: JobHandle) -> int:
    """Leave the job to the fleet, or stop it where the fleet is this command's own."""
    if not client.is_embedded:
        render.render_detached(handle.name)
        return INTERRUPTED
    render.render_notice(f"stopping {handle.name}: no new trials, running ones are closed")
    with contextlib.suppress(KeyboardInterrupt, TimeoutError, BenchflowError):
        handle.cancel(by=client.settings.user, reason="interrupted")
        summary = handle.wait(timeout_s=120)
        cancelled = sum(group.cancelled for group in summary.groups)
        render.render_notice(
            f"{handle.name} stopped: {summary.planned - cancelled} of {summary.planned} trials ended · "
            f"run the rest: bench resume {handle.name}"
        )
    return INTERRUPTED


run = with_spec_flags(run_job, VIEW)
submit = with_spec_flags(submit_job, VIEW)
run.__name__, submit.__name__ = "run", "submit"
