"""`bench run` and `bench submit`: plan, show, send, watch, tell."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import with_spec_flags
from benchflow_client.errors import BenchflowError
from benchflow_client.handle import Fleet, JobHandle
from benchflow_client.plan.draft import Draft
from benchflow_client.results.evidence import evidence_of
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.summary import Summary

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def _view(name: str, kind: Any, help_text: str, *names: str) -> inspect.Parameter:
    parameter = Parameter(name=names or None, help=help_text, negative=(), show_default=False)
    default = False if kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, parameter], default=default
    )


VIEW = {
    "file": _view("file", Path | None, "Job file in YAML; flags win over it.", "--file", "-f"),
    "dry_run": _view("dry_run", bool, "Show the plan and stop."),
    "json": _view("json", bool, "Write the result as JSON to stdout."),
}
"""Flags that are no part of the job."""


def run_job(spec: JobSpec, *, dry_run: bool, json: bool) -> int:
    """Run a job and show its numbers; Ctrl-C leaves a fleet's job running."""
    if dry_run:
        return _show_plan(spec, is_json=json)
    with Client() as client:
        try:
            handle = client.submit(spec, on_draft=_announce)
        except KeyboardInterrupt:
            render.render_notice("interrupted before anything was submitted")
            return INTERRUPTED
        return follow_to_end(client, handle, folder=Path(spec.jobs_dir) / handle.name, is_json=json)


def submit_job(spec: JobSpec, *, dry_run: bool, json: bool) -> int:
    """Submit a job to the fleet and return at once."""
    if dry_run:
        return _show_plan(spec, is_json=json)
    client = Client()
    handle = client.submit(spec, on_draft=_announce)
    client.detach()
    if json:
        render.print_json({"job": handle.name})
    else:
        render.print_text(handle.name)
        render.render_detached(handle.name)
    return 0


def follow_to_end(client: Client, handle: JobHandle, *, folder: Path, is_json: bool = False) -> int:
    """Watch a job to its end, copy its documents, show its numbers, and return its exit code."""
    try:
        summary = _follow(handle)
    except KeyboardInterrupt:
        return _interrupted(client, handle)
    handle.fetch(folder)
    return show_results(handle, summary, folder=str(folder), is_json=is_json)


def show_results(handle: JobHandle, summary: Summary, *, folder: str, is_json: bool) -> int:
    """Show a closed job and return the exit code of its run."""
    if is_json:
        render.print_json(summary.model_dump(mode="json"))
    render.render_summary(summary)
    render.render_failures(summary, evidence=evidence_of(handle.trials, summary))
    render.render_done(summary, folder=folder)
    return 1 if summary.all_without_verdict else 0


def _show_plan(spec: JobSpec, *, is_json: bool) -> int:
    with Client() as client:
        draft = client.draft(spec)
    if is_json:
        render.print_json(draft.plan.model_dump(mode="json"))
    else:
        render.render_plan(draft.plan)
        _warn(draft)
    return 0


def _announce(draft: Draft, fleet: Fleet) -> None:
    render.render_plan(draft.plan, fleet=fleet.label)
    _warn(draft)


def _warn(draft: Draft) -> None:
    render.render_warnings(draft.warnings)


def _follow(handle: JobHandle) -> Summary:
    with render.open_progress() as display:
        for view in handle.watch():
            display.update(view)
    return handle.wait()


def _interrupted(client: Client, handle: JobHandle) -> int:
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
            f"run the rest: bench resume {handle.name} --retry cancelled"
        )
    return INTERRUPTED


run = with_spec_flags(run_job, VIEW)
submit = with_spec_flags(submit_job, VIEW)
run.__name__, submit.__name__ = "run", "submit"
