"""The phases of a trial: functions from frozen records to frozen records."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox
from benchflow_client.schema.failure import Failure
from benchflow_client.store.documents import plain_json
from benchflow_workers.agents.base import AgentRun, SkillSet
from benchflow_workers.agents.events import EVENTS_PATH, final_message, parse_events
from benchflow_workers.agents.ready import Installs
from benchflow_workers.agents.skill_use import marked_uses
from benchflow_workers.agents.skills import place_skills
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import ROOT, Completed, Sandbox
from benchflow_workers.sandbox.services import SERVICE_LOGS_DIR, save_service_logs
from benchflow_workers.trial.artifacts import collect_artifacts, collect_logs, collect_tests
from benchflow_workers.trial.boundary import Boundary, with_failure
from benchflow_workers.trial.captured import Captured
from benchflow_workers.trial.frozen import SIZE_LIMIT_BYTES, freeze, freeze_files
from benchflow_workers.trial.manifest import start_services
from benchflow_workers.trial.networks import enter_network, keep_refusals
from benchflow_workers.trial.prepare import CLOSE_TIMEOUT_S
from benchflow_workers.trial.records import Prepared, Rollout, frozen_room
from benchflow_workers.trial.recovery import keep_solver
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.restored import RestoredTurn
from benchflow_workers.trial.setup import run_setup_commands, tail, until_healthy
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR
from benchflow_workers.verifiers.harden_baseline import take_baseline

_TAIL_BYTES = 2000

EVENTS_LIMIT_BYTES = 64 << 20
"""Bytes of an agent's own events that are read; the file is kept whole, but a worker has many slots."""


class Stopwatch:
    """Wall clock of each phase, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add what another stopwatch measured."""
        for phase, more in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + more

    @contextmanager
    def time(self, phase: str) -> Generator[None, None, None]:
        """Add what the block takes to a phase, however it ends."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - start})


async def set_up(prepared: Prepared, sandbox: Sandbox, folder: Path) -> AsyncGenerator[Captured, None]:
    """Run setup commands, start services, wait for the healthcheck, make the agent's user, place its skills.

    A step makes its own user; steps and sessions place their own skills.

    Args:
        prepared: The rollout.
        sandbox: Its sandbox.
        folder: The attempt's on this host.

    Yields:
        What setup commands have left so far for what comes after them.

    Raises:
        SandboxError: `sandbox.start_failed` naming the step and the end of its output.
        AgentError: `agent.not_runnable`, `agent.install_failed`, `skills.not_placed`.
    """
    table = prepared.folder.task.config.sandbox
    await enter_network(prepared, sandbox, "setup")
    captured = Captured()
    async for captured in run_setup_commands(prepared, sandbox, folder):
        yield captured
    yield replace(captured, warnings=await start_services(prepared, sandbox))
    if table.healthcheck is not None:
        await until_healthy(table.healthcheck, sandbox)
    if prepared.folder.task.config.verifier.hardening.restore_workspace:
        await take_baseline(sandbox, sandbox.workdir, timeout_s=prepared.verify_context.setup_timeout_s)
    if prepared.agent.runs_as_user and prepared.agent_context.user != ROOT and not prepared.steps:
        await prepare_user(
            sandbox,
            prepared.agent_context.user,
            workdir=sandbox.workdir,
            timeout_s=prepared.verify_context.setup_timeout_s,
            locked=prepared.agent_context.locked,
        )
    await _install(prepared, sandbox)
    if not (prepared.steps or prepared.sessions or prepared.talk):
        timeout_s = prepared.verify_context.setup_timeout_s
        await place_skills(sandbox, prepared.agent_context, timeout_s=timeout_s, keep=folder)


async def _install(prepared: Prepared, sandbox: Sandbox) -> None:
    """Install the agents that are installed in each sandbox, each once, while the network is that of the setup."""
    installed: dict[str, AgentDefinition] = {}
    for player in prepared.players:
        definition = player.context.definition
        if definition is None or not isinstance(player.agent, Installs):
            continue
        before = installed.get(definition.name)
        if before is None:
            await player.agent.install(sandbox, player.context)
            installed[definition.name] = definition
        elif isinstance(definition.install, InSandbox) and not _is_same_program(before, definition):
            raise AgentError(
                "agent.not_runnable",
                f"Two versions of agent {definition.name!r} cannot be installed in one sandbox: {before.version!r} and "
                f"{definition.version!r}.",
                hint="Let all roles of the task play it in the version of the job.",
            )


def _is_same_program(one: AgentDefinition, other: AgentDefinition) -> bool:
    return (one.version, one.install) == (other.version, other.install)


async def take_turn(prepared: Prepared, sandbox: Sandbox, rollout: Rollout) -> Rollout:
    """Let the agent take its turn; a deadline or a bad exit is recorded and does not end the trial.

    Where the turn broke off the rollout says so: then nothing of it may be scored.
    """
    await enter_network(prepared, sandbox, "agent")
    run = await prepared.agent.run(sandbox, replace(prepared.agent_context, live=prepared.live))
    events, n_uses = marked_uses(run.events, prepared.agent_context.skills)
    after = replace(
        rollout,
        events=events,
        agent_log=run.log,
        agent_exit_code=run.exit_code,
        usage=run.usage.model_copy(update={"n_skill_invocations": n_uses}),
        failures=(*rollout.failures, *run.failures),
        is_broken=run.is_broken,
        agent_version=run.version,
    )
    return after if run.failures else with_failure(after, _turn_failure(prepared, run))


async def keep_workspace(prepared: Prepared, sandbox: Sandbox, rollout: Rollout, folder: Path) -> Rollout:
    """Stop the agent for good and keep its workspace or its submission files; what goes wrong is a warning."""
    room = frozen_room(folder)
    redactor = Redactor(prepared.secrets | rollout.secrets, kept_bytes=SIZE_LIMIT_BYTES)
    context, files = prepared.verify_context, prepared.folder.task.config.verifier.submission_files
    try:
        if context.agent_user is not None:
            await sandbox.kill(context.agent_user)
    except SandboxError as error:
        return replace(rollout, warnings=(*rollout.warnings, f"The workspace was not kept. {error.message}"))
    if files:
        frozen, warnings = await freeze_files(sandbox, files, room, redactor=redactor)
    else:
        frozen, warnings = await freeze(sandbox, room, redactor=redactor, timeout_s=context.setup_timeout_s)
    after = replace(rollout, frozen=frozen, warnings=(*rollout.warnings, *warnings))
    return await keep_solver(prepared, after, room)


async def run_tests(prepared: Prepared, sandbox: Sandbox, rollout: Rollout) -> Completed:
    """Stop the agent for good, place the tests and what it said last, run them."""
    await enter_network(prepared, sandbox, "verifier")
    said = None if isinstance(prepared.agent, RestoredTurn) else plain_json(final_message(rollout.events))
    return await prepared.verifier.run(sandbox, replace(prepared.verify_context, message=said))


async def collect(prepared: Prepared, sandbox: Sandbox, folder: Path) -> tuple[str, ...]:
    """Copy logs and declared artifacts into the attempt's folder on this host.

    What the agent left costs no verdict: too much of it is kept in part, and an artifact
    is left out when its place lies outside the folder or is taken.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost, or what the tests left cannot be copied.
    """
    config = prepared.folder.task.config
    try:
        warnings = await collect_logs(sandbox, folder, judged_in=config.verifier.service)
        await save_service_logs(sandbox, folder / SERVICE_LOGS_DIR)
        return warnings + await collect_artifacts(sandbox, config.artifacts, folder / "artifacts")
    finally:
        keep_refusals(prepared, sandbox, folder)  # last: a sandbox cannot write its own


async def collect_verdict(prepared: Prepared, sandbox: Sandbox, folder: Path) -> tuple[str, ...]:
    """Copy what the tests left in a sandbox of their own; what the agent's had in that place goes.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost, or what the tests left cannot be copied.
    """
    del prepared
    return await collect_tests(sandbox, folder)


def with_events(rollout: Rollout, folder: Path, skills: SkillSet | None) -> Rollout:
    """Return the rollout with the events the agent wrote into its log folder since they were last read.

    Args:
        rollout: The rollout.
        folder: The attempt's on this host.
        skills: Skills the agent had.
    """
    file = folder / EVENTS_PATH.removeprefix("/logs/")
    if not file.is_file() or file.is_symlink():
        return rollout
    with file.open("rb") as stream:
        written = parse_events(stream.read(EVENTS_LIMIT_BYTES))
    events, n_uses = marked_uses(written[rollout.n_events_read :], skills)
    n_calls = sum(event.get("type") == "tool_call" for event in events)
    before = rollout.usage
    usage = before.model_copy(
        update={
            "n_tool_calls": before.n_tool_calls + n_calls,
            "n_skill_invocations": before.n_skill_invocations + n_uses,
        }
    )
    return replace(rollout, events=(*rollout.events, *events), usage=usage, n_events_read=len(written))


def judge(prepared: Prepared, tests: Completed, rollout: Rollout, folder: Path) -> Rollout:
    """Read the verdict from what the tests left."""
    logs = folder / VERIFIER_LOGS_DIR.rpartition("/")[2]
    if logs.is_file():
        logs.unlink()
    logs.mkdir(parents=True, exist_ok=True)
    verdict = prepared.verifier.judge(prepared.verify_context, tests, logs)
    judged = replace(rollout, rewards=verdict.rewards, warnings=(*rollout.warnings, *verdict.warnings))
    return with_failure(judged, verdict.failure)


async def close(sandbox: Sandbox, *, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
    """Remove the sandbox; cancelled or not, this is waited for, but never beyond its time.

    Args:
        sandbox: The sandbox.
        timeout_s: Seconds it may take.

    Returns:
        False when it could not be removed in time; the reaper will.
    """
    closing = asyncio.ensure_future(_closed(sandbox))
    deadline = time.monotonic() + timeout_s
    while not closing.done() and (left_s := deadline - time.monotonic()) > 0:
        # Waiting does not cancel what is waited for, so that a trial that is stopped still closes.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({closing}, timeout=left_s)
    # One that swallows this too is left to the end of the loop; waiting for it could take for ever.
    closing.cancel()
    return closing.done() and not closing.cancelled() and closing.result()


async def _closed(sandbox: Sandbox) -> bool:
    async with Boundary() as boundary:
        await sandbox.close()
    return boundary.failure is None


def _turn_failure(prepared: Prepared, run: AgentRun) -> Failure | None:
    if run.timed_out:
        limit = prepared.agent_context.timeout_s or 0.0
        return Failure(code="agent.timeout", message=f"The agent was stopped after {limit:g} s.")
    if run.exit_code not in {0, None} and not prepared.agent.is_control:
        end = run.log[-_TAIL_BYTES:].decode("utf-8", "replace")
        return Failure(
            code="agent.exited", message=f"The agent ended with exit code {run.exit_code}.", detail=end
        )
    return None


PhaseObserver = Callable[[str], object]
"""Told the name of each phase as it begins; must not raise and not block."""

__all__ = [
    "EVENTS_LIMIT_BYTES",
    "PhaseObserver",
    "Stopwatch",
    "close",
    "collect",
    "collect_verdict",
    "judge",
    "keep_workspace",
    "run_tests",
    "set_up",
    "tail",
    "take_turn",
    "with_events",
]
