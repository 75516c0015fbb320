"""What a task has done to its sandbox before the agent: setup commands, then the healthcheck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.task import Healthcheck, SetupCommand
from benchflow_workers.sandbox.base import ROOT, Command, Completed, Sandbox
from benchflow_workers.sandbox.services import service_sandbox
from benchflow_workers.trial.captured import Captured, capture
from benchflow_workers.trial.records import Prepared

__all__ = ["ending", "run_setup_commands", "tail", "until_healthy"]

_TAIL_BYTES: Final = 2000


async def run_setup_commands(
    prepared: Prepared, sandbox: Sandbox, folder: Path
) -> AsyncGenerator[Captured, None]:
    """Run the task's setup commands in order, each in its service and behind its lock where it names one.

    Args:
        prepared: The rollout.
        sandbox: Its sandbox.
        folder: The attempt's; beside it what commands capture is kept.

    Yields:
        After each command what there is for all that comes after it.

    Raises:
        SandboxError: `sandbox.start_failed` naming the command and the end of its output.
    """
    commands = prepared.folder.task.config.sandbox.setup_commands
    captured = Captured()
    for number, command in enumerate(commands, start=1):
        env = captured.fill_in(prepared.setup_env[number - 1])
        origin = service_sandbox(sandbox, command.service)
        async with AsyncExitStack() as stack:
            if command.host_lock is not None:
                await stack.enter_async_context(prepared.host_locks.hold(command.host_lock))
            if captured.files:
                await origin.put(captured.files)
            _check(prepared, command, await origin.exec(_command(command, env)))
            captured = await capture(command, origin, captured, number=number, attempt_folder=folder)
        yield captured
    if captured.files:
        await sandbox.put(captured.files)


def _command(command: SetupCommand, env: Mapping[str, str]) -> Command:
    return Command(
        ("sh", "-c", command.command),
        timeout_s=command.timeout_sec,
        user=ROOT if command.user is None else command.user,
        env=env,
        workdir=command.cwd,
    )


def _check(prepared: Prepared, command: SetupCommand, done: Completed) -> None:
    if done.exit_code != 0 or done.timed_out:
        raise SandboxError(
            "sandbox.start_failed",
            f"Setup command {command.command[:80]!r} of task {prepared.folder.task.name!r} "
            f"{ending(done, command.timeout_sec)}.\n{tail(done)}",
            hint="Run it in the image by hand; setup_commands must end with exit code 0.",
        )


async def until_healthy(check: Healthcheck, sandbox: Sandbox) -> None:
    """Wait for a healthcheck as Docker does: failures in the start period do not count.

    Raises:
        SandboxError: `sandbox.start_failed` after as many failures as `retries` says.
    """
    started, failed = time.monotonic(), 0
    while True:
        done = await sandbox.exec(Command(("sh", "-c", check.command), timeout_s=check.timeout_sec))
        if done.exit_code == 0 and not done.timed_out:
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


def ending(done: Completed, timeout_s: float) -> str:
    """Return how a command ended, as the end of a sentence."""
    if done.timed_out:
        return f"did not end within {timeout_s:g} s"
    return f"ended with exit code {done.exit_code}"


def tail(done: Completed) -> str:
    """Return the end of what a command printed, for a failure's detail."""
    return (done.stdout + done.stderr)[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
