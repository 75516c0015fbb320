"""Commands about the machines: worker, workers, up, down, doctor, agents."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from cyclopts import Parameter
from pydantic import ValidationError

from benchflow_client import settings as settings_module
from benchflow_client.api import Client
from benchflow_client.catalog.agents import AgentEntry, find_agent, list_agents
from benchflow_client.catalog.own_agents import own_agents
from benchflow_client.cli import render
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.doctor import check_machine
from benchflow_client.embedded.fleet import EmbeddedFleet
from benchflow_client.errors import UsageError
from benchflow_client.report import WorkerRow, agent_record, agent_report, agents_report
from benchflow_client.schema.agent import AgentSpec


def worker(
    *arguments: Annotated[str, Parameter(help="Flags of the worker program.", allow_leading_hyphen=True)],
) -> NoReturn:
    """Serve trials on this machine: becomes the worker program, which has flags of its own."""
    os.execv(sys.executable, [sys.executable, "-m", "benchflow_workers", "worker", *arguments])


def workers(*, jobs_dir: JobsDir = Path("jobs"), json: Json = False) -> int:
    """List the workers that are alive."""
    with Client(jobs_dir=jobs_dir) as client:
        now = time.time()
        rows = [
            WorkerRow(
                worker=record.name,
                queues=record.queues,
                slots=record.slots if record.state == "healthy" else 0,
                size=record.slots,
                running=record.running,
                state=record.state,
                since_s=max(0.0, now - record.since),
                note=record.note,
            )
            for record in client.workers()
        ]
    if json:
        render.print_json([row._asdict() for row in rows])
    else:
        render.render_workers(rows)
    return 0


def drain(
    worker: Annotated[str, Parameter(help="Name of the worker, as `bench workers` lists it.")],
    *,
    reason: Annotated[str, Parameter(help="Why, for others to read.")] = "",
    jobs_dir: JobsDir = Path("jobs"),
) -> int:
    """Stop a worker: it takes no new trial, and its running ones go back to the queue."""
    with Client(jobs_dir=jobs_dir) as client:
        client.drain(worker, reason=reason)
    render.render_notice(f"{worker} was asked to stop · watch it leave: bench workers")
    return 0


def up(
    *,
    jobs_dir: JobsDir = Path("jobs"),
    slots: Annotated[int, Parameter(help="Trials at once.")] = 4,
) -> int:
    """Start a fleet on this machine and leave it running; `bench down` stops it."""
    settings = settings_module.load()
    fleet = EmbeddedFleet(settings.state_dir, jobs_dir, settings_module.process_environ())
    instance = fleet.join(slots=slots)
    fleet.keep()
    fleet.leave()
    render.render_notice(
        f"up: 1 worker, {instance.slots} slots, results in {jobs_dir} · log {fleet.log} · stop: bench down"
    )
    return 0


def down(*, jobs_dir: JobsDir = Path("jobs")) -> int:
    """Stop the fleet of `bench up`; running trials are stopped and no sandbox stays."""
    settings = settings_module.load()
    fleet = EmbeddedFleet(settings.state_dir, jobs_dir, settings_module.process_environ())
    was_running = fleet.stop()
    render.render_notice("down" if was_running else f"nothing was running for the folder {jobs_dir}")
    return 0


def doctor(*, json: Json = False) -> int:
    """Check this machine: Python, broker, store, sandboxes, disk, agents; exit 1 on a FAIL."""
    checks = check_machine(settings_module.load(), settings_module.process_environ())
    if json:
        render.print_json([check._asdict() for check in checks])
    else:
        render.render_doctor(checks)
    return 1 if any(check.status == "FAIL" for check in checks) else 0


def agents(
    verb: Annotated[
        Literal["list", "show", "prepare"],
        Parameter(help="list; show NAME; prepare NAME: install it on this host, as its first trial would."),
    ] = "list",
    name: Annotated[str | None, Parameter(help="An agent.")] = None,
    *,
    json: Json = False,
) -> int:
    """List the agents that --agent takes, show one, or install a ready-made one on this host."""
    if (verb == "list") != (name is None):
        raise UsageError(
            f"`bench agents {verb}` takes {'no name' if name else 'a name'}.",
            hint="`bench agents` lists them.",
        )
    if verb == "prepare":
        os.execv(sys.executable, [sys.executable, "-m", "benchflow_workers", "prepare-agent", str(name)])
    own = own_agents(settings_module.load().agents_dir)
    entries = list_agents(own) if name is None else [_entry(name, own)]
    if json:
        render.print_json([agent_record(entry) for entry in entries])
    else:
        render.render_report(agents_report(entries) if name is None else agent_report(entries[0]))
    return 0


def _entry(name: str, own: Mapping[str, AgentEntry]) -> AgentEntry:
    """Return an agent as a job would have it, in the version its name says."""
    try:
        spec = AgentSpec.model_validate(name)
    except ValidationError as error:
        raise UsageError(
            f"{name!r} names no agent: {error.errors()[0]['msg']}.", hint="`bench agents` lists them."
        ) from error
    entry = find_agent(spec.name, own)
    if spec.version is None or entry.definition is None:
        return entry
    return replace(entry, definition=entry.definition.model_copy(update={"version": spec.version}))
