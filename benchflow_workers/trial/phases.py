"""The phases of a trial: functions from frozen records to frozen records."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.task import Healthcheck
from benchflow_workers.agents.base import AgentRun
from benchflow_workers.agents.events import EVENTS_PATH, parse_events
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import ROOT, Command, Completed, Sandbox
from benchflow_workers.trial.boundary import Boundary, with_failure
from benchflow_workers.trial.prepare import CLOSE_TIMEOUT_S
from benchflow_workers.trial.records import Prepared, Rollout
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR
from benchflow_workers.verifiers.reward import CTRF_JSON, REWARD_JSON, REWARD_TEXT
from benchflow_workers.verifiers.reward_files import CTRF_LIMIT_BYTES, FILE_LIMIT_BYTES

_TAIL_BYTES = 2000

_EVENTS_LIMIT_BYTES = 64 << 20
"""Bytes of an agent's own events that are read; the file is kept whole, but a worker has many slots."""


_LOGS_LIMIT_BYTES = 1 << 30
"""Bytes collected from `/logs`, or as one artifact."""

_PART_LIMIT_BYTES = 256 << 20
"""Bytes collected from each folder below `/logs` when together they are too large: less than all at once."""


class Stopwatch:
    """Wall clock of each phase, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, phase: str) -> Generator[None, None, None]:
        """Add what the block takes to a phase, however it ends."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - start


async def set_up(prepared: Prepared, sandbox: Sandbox) -> None:
    """Run setup commands, wait for the healthcheck, make the agent's user.

    Raises:
        SandboxError: `sandbox.start_failed` naming the step and the end of its output.
    """
    table = prepared.folder.task.config.sandbox
    for command, env in zip(table.setup_commands, prepared.setup_env, strict=True):
        done = await sandbox.exec(
            Command(
                ("sh", "-c", command.command),
                timeout_s=command.timeout_sec,
                user=command.user or ROOT,
                env=env,
                workdir=command.cwd,
            )
        )
        if done.exit_code != 0:
            raise SandboxError(
                "sandbox.start_failed",
                f"Setup command {command.command[:80]!r} of task {prepared.folder.task.name!r} "
                f"{_ending(done, command.timeout_sec)}.\n{tail(done)}",
                hint="Run it in the image by hand; setup_commands must end with exit code 0.",
            )
    if table.healthcheck is not None:
        await _until_healthy(table.healthcheck, sandbox)
    if prepared.agent.runs_as_user and prepared.agent_context.user != ROOT:
        await prepare_user(
            sandbox,
            prepared.agent_context.user,
            workdir=sandbox.workdir,
            timeout_s=prepared.verify_context.setup_timeout_s,
        )


async def take_turn(prepared: Prepared, sandbox: Sandbox, rollout: Rollout) -> Rollout:
    """Let the agent take its turn; a deadline or a bad exit is recorded and does not end the trial."""
    run = await prepared.agent.run(sandbox, prepared.agent_context)
    after = replace(
        rollout, events=run.events, agent_log=run.log, agent_exit_code=run.exit_code, usage=run.usage
    )
    return with_failure(after, _turn_failure(prepared, run))


async def run_tests(prepared: Prepared, sandbox: Sandbox) -> Completed:
    """Stop the agent for good, place the tests, run them."""
    return await prepared.verifier.run(sandbox, prepared.verify_context)


async def collect(prepared: Prepared, sandbox: Sandbox, folder: Path) -> tuple[str, ...]:
    """Copy logs and declared artifacts into the attempt's folder on this host.

    What the agent left costs no verdict: too much of it is kept in part, and an artifact
    is left out when its place lies outside the folder or is taken.

    Returns:
        What could not be copied whole, as sentences.

    Raises:
        SandboxError: The sandbox is lost, or what the tests left cannot be copied.
    """
    warnings: list[str] = []
    if await _copied_in_part(sandbox, "/logs", folder):
        warnings += await _collect_parts(sandbox, folder)
    for artifact in prepared.folder.task.config.artifacts:
        target = folder / "artifacts" / (artifact.destination or artifact.source).lstrip("/")
        if not target.resolve().is_relative_to((folder / "artifacts").resolve()):
            continue
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            target.parent.mkdir(parents=True, exist_ok=True)
            warnings += await _copied_in_part(sandbox, artifact.source, target)
    return tuple(warnings)


async def _collect_parts(sandbox: Sandbox, folder: Path) -> list[str]:
    """Copy the logs again one by one: the verdict's must come, of the others as much as comes."""
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    name = VERIFIER_LOGS_DIR.rpartition("/")[2]
    try:
        await sandbox.get(VERIFIER_LOGS_DIR, folder / name, limit_bytes=_PART_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        warnings = [_in_part(VERIFIER_LOGS_DIR, error)]
        for file in (REWARD_TEXT, REWARD_JSON, CTRF_JSON):
            await _collect_verdict_file(sandbox, f"{VERIFIER_LOGS_DIR}/{file}", folder / name / file)
    else:
        warnings = []
    for source in ("agent", "artifacts"):
        warnings += await _copied_in_part(
            sandbox, f"/logs/{source}", folder / source, limit_bytes=_PART_LIMIT_BYTES
        )
    return warnings


async def _collect_verdict_file(sandbox: Sandbox, source: str, target: Path) -> None:
    """Copy a file of the verdict; of one that is too large enough comes for the verifier to refuse it."""
    try:
        await sandbox.get(source, target, limit_bytes=CTRF_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        if not await asyncio.to_thread(_is_refused, target):
            raise


def _is_refused(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > FILE_LIMIT_BYTES


async def _copied_in_part(
    sandbox: Sandbox, source: str, target: Path, *, limit_bytes: int = _LOGS_LIMIT_BYTES
) -> list[str]:
    """Copy a path and return a warning when not all of it came."""
    try:
        await sandbox.get(source, target, limit_bytes=limit_bytes)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        return [_in_part(source, error)]
    return []


def _in_part(source: str, error: SandboxError) -> str:
    return f"Not all of {source} was kept. {error.message}"


def with_events(rollout: Rollout, folder: Path) -> Rollout:
    """Return the rollout with the events the agent wrote into its log folder, if it did."""
    file = folder / EVENTS_PATH.removeprefix("/logs/")
    if not file.is_file() or file.is_symlink():
        return rollout
    with file.open("rb") as stream:
        events = parse_events(stream.read(_EVENTS_LIMIT_BYTES))
    tool_calls = sum(event.get("type") == "tool_call" for event in events)
    usage = rollout.usage.model_copy(update={"n_tool_calls": rollout.usage.n_tool_calls + tool_calls})
    return replace(rollout, events=(*rollout.events, *events), usage=usage)


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


async def _until_healthy(check: Healthcheck, sandbox: Sandbox) -> None:
    """Wait for the healthcheck as Docker does: failures in the start period do not count."""
    started, failed = time.monotonic(), 0
    while True:
        done = await sandbox.exec(Command(("sh", "-c", check.command), timeout_s=check.timeout_sec))
        if done.exit_code == 0:
            return
        is_starting = time.monotonic() - started < check.start_period_sec
        failed += int(not is_starting)
        if failed >= check.retries:
            raise SandboxError(
                "sandbox.start_failed",
                f"The healthcheck {check.command[:80]!r} failed {failed} times.\n{tail(done)}",
                hint="Raise healthcheck.start_period_sec or retries, or fix the command.",
            )
        await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


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


def _ending(done: Completed, timeout_s: float) -> str:
    if done.timed_out:
        return f"did not end within {timeout_s:g} s"
    return f"ended with exit code {done.exit_code}"


def tail(done: Completed) -> str:
    """Return the end of what a command printed, for a failure's detail."""
    return (done.stdout + done.stderr)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()


PhaseObserver = Callable[[str], object]
"""Told the name of each phase as it begins; must not raise and not block."""

__all__ = [
    "PhaseObserver",
    "Stopwatch",
    "close",
    "collect",
    "judge",
    "run_tests",
    "set_up",
    "tail",
    "take_turn",
    "with_events",
]
