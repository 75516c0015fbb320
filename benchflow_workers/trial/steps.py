"""Multi-step tasks: how a step begins in the sandbox of the one before, and what all steps come to together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.task import Task
from benchflow_workers.agents.skills import place_skills
from benchflow_workers.agents.usage import total_usage
from benchflow_workers.agents.user import SYSTEM_PATH, prepare_user
from benchflow_workers.sandbox.base import ROOT, Command, Sandbox, Upload
from benchflow_workers.shell_scripts import unix_copies
from benchflow_workers.trial.records import Prepared, PreparedStep, Rollout
from benchflow_workers.trial.setup import ending, tail, until_healthy
from benchflow_workers.verifiers.environment import place_of_tests

__all__ = ["begin_step", "combined", "is_passed"]

SETUP_SCRIPT: Final = "setup.sh"
"""Script of a step's workdir that is run in the workspace before its agent."""

_CLEAR: Final = (
    f"PATH={SYSTEM_PATH}:${{PATH-}}\n"
    + """
set -u
tests=$1 solution=$2
for logs in /logs/agent /logs/verifier; do
  if [ -L "$logs" ] || { [ -e "$logs" ] && [ ! -d "$logs" ]; }; then rm -f "$logs"; fi
  mkdir -p "$logs"
  rm -rf "$logs"/* "$logs"/.[!.]* "$logs"/..?* || exit 1
done
rm -rf "$tests" "$solution" || exit 1
if [ -L /tests ]; then rm -f /tests; fi
"""
)
"""What a step leaves for no later one to see: its tests, its solution, what both sides wrote down."""

_SET_UP: Final = f"""
if command -v bash >/dev/null 2>&1; then exec bash ./{SETUP_SCRIPT} 2>&1; fi
exec sh ./{SETUP_SCRIPT} 2>&1
"""


async def begin_step(step: PreparedStep, sandbox: Sandbox, folder: Path, *, is_first: bool) -> None:
    """Make the sandbox ready for a step's agent.

    Clears what the step before left, places instruction, program and workdir, gives the
    workspace to the step's user, runs `setup.sh` as that user, waits for the healthcheck,
    places the agent's skills.

    Raises:
        SandboxError: `sandbox.start_failed`: `setup.sh` or the healthcheck failed, or the
            step before cannot be cleared away; what the sandbox raises.
        AgentError: `agent.not_runnable`: the user cannot be made; `skills.not_placed`.
    """
    prepared = step.prepared
    if not is_first:
        await _clear(prepared, sandbox)
    await sandbox.put((*prepared.sandbox.uploads, *_workdir_uploads(step.workdir, sandbox.workdir)))
    user = prepared.agent_context.user if prepared.agent.runs_as_user else ROOT
    if user != ROOT:
        await prepare_user(
            sandbox,
            user,
            workdir=sandbox.workdir,
            timeout_s=prepared.verify_context.setup_timeout_s,
            locked=prepared.agent_context.locked,
        )
    if step.workdir is not None and (step.workdir / SETUP_SCRIPT).is_file():
        await _set_up(step, sandbox, user)
    if step.table.healthcheck is not None:
        await until_healthy(step.table.healthcheck, sandbox)
    await place_skills(
        sandbox, prepared.agent_context, timeout_s=prepared.verify_context.setup_timeout_s, keep=folder
    )


async def _clear(prepared: Prepared, sandbox: Sandbox) -> None:
    task = prepared.folder.task
    done = await sandbox.exec(
        Command(
            ("sh", "-c", _CLEAR, "benchflow-step", place_of_tests(task), _place_of_solution(task)),
            timeout_s=prepared.verify_context.setup_timeout_s,
            workdir="/",
        )
    )
    if done.exit_code != 0 or done.timed_out:
        raise SandboxError(
            "sandbox.start_failed",
            f"What the step before left in the sandbox of task {task.name!r} could not be cleared away: it "
            f"{ending(done, prepared.verify_context.setup_timeout_s)}.\n{tail(done)}",
            hint="Root must be able to change /logs and the folders of tests and solution.",
        )


def _place_of_solution(task: Task) -> str:
    return f"/{task.oracle_dir or 'solution'}"


def _workdir_uploads(folder: Path | None, workdir: str) -> list[Upload]:
    """Return what a step adds to the workspace; the workspace itself stays as it is."""
    if folder is None:
        return []
    entries = sorted(folder.iterdir())
    placed = [Upload(f"{workdir}/{entry.name}", source=entry) for entry in entries if not entry.is_symlink()]
    links = [
        Upload(f"{workdir}/{entry.name}", link_to=str(entry.readlink()))
        for entry in entries
        if entry.is_symlink()
    ]
    return [*placed, *links, *unix_copies(folder, workdir)]


async def _set_up(step: PreparedStep, sandbox: Sandbox, user: str) -> None:
    timeout_s = step.prepared.verify_context.setup_timeout_s
    done = await sandbox.exec(
        Command(("sh", "-c", _SET_UP, "benchflow-step"), timeout_s=timeout_s, user=user)
    )
    if done.exit_code != 0 or done.timed_out:
        raise SandboxError(
            "sandbox.start_failed",
            f"{SETUP_SCRIPT} of step {step.table.name!r} of task {step.prepared.folder.task.name!r} "
            f"{ending(done, timeout_s)}.\n{tail(done)}",
            hint="Run it in the image by hand; it must end with exit code 0 whatever the steps before did.",
        )


def is_passed(step: PreparedStep, rollout: Rollout) -> bool:
    """Return whether the next step may start: there is a verdict, and it is at least what is asked."""
    rewards = rollout.rewards
    if rewards is None:
        return False
    floors = step.table.min_reward or {}
    return all(_number(rewards.get(name), missing=float("-inf")) >= floor for name, floor in floors.items())


def combined(prepared: Prepared, start: Rollout, done: Sequence[Rollout]) -> Rollout:
    """Return what a trial comes to.

    A step that was begun and has no verdict leaves the trial without one. With `mean` each
    number is the mean over all steps; a step that does not name it, or was never begun
    because `min_reward` was missed before, counts 0: what was not done is not averaged
    away. With `final` the last step that was begun decides alone.

    Args:
        prepared: The task.
        start: The rollout before the first step.
        done: What the steps that were begun came to, in order.
    """
    named = [(step.table.name, one) for step, one in zip(prepared.steps, done, strict=False)]
    return replace(
        start,
        failures=(*start.failures, *(failure for name, one in named for failure in _failures(name, one))),
        rewards=_rewards(prepared, done),
        warnings=(*start.warnings, *_warnings(prepared, named)),
        events=[event for name, one in named for event in ({"type": "step", "name": name}, *one.events)],
        agent_log=_joined((name, one.agent_log) for name, one in named),
        agent_exit_code=done[-1].agent_exit_code,
        usage=total_usage([one.usage for one in done]),
        test_output=_tests_output(named),
        steps=tuple(named),
    )


def _rewards(prepared: Prepared, done: Sequence[Rollout]) -> Mapping[str, Any] | None:
    verdicts = [one.rewards for one in done if one.rewards is not None]
    if len(verdicts) < len(done):
        return None
    if prepared.folder.task.config.multi_step_reward_strategy == "final":
        return verdicts[-1]
    numbers = [{key: value for key, value in one.items() if _is_number(value)} for one in verdicts]
    keys = dict.fromkeys(key for one in numbers for key in one)
    return {key: sum(one.get(key, 0.0) for one in numbers) / len(prepared.steps) for key in keys}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object, *, missing: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else missing


def _failures(name: str, rollout: Rollout) -> Iterator[Failure]:
    for failure in rollout.failures:
        yield failure.model_copy(update={"message": f"Step {name!r}: {failure.message}"})


def _warnings(prepared: Prepared, named: Sequence[tuple[str, Rollout]]) -> Iterator[str]:
    if prepared.is_frozen_after:
        yield "What each step left was not kept, so it cannot be judged again: each step begins in what the one before left."
    for name, one in named:
        yield from (f"Step {name!r}: {warning}" for warning in one.warnings)
    last, rollout = named[-1]
    if len(named) < len(prepared.steps) and rollout.rewards is not None:
        yield (
            f"Stopped after step {last!r}, {len(named)} of {len(prepared.steps)}: its reward is below min_reward."
        )


def _joined(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return what the steps printed, each below its name."""
    return b"".join(f"== step {name} ==\n".encode() + text + b"\n" for name, text in parts if text)


def _tests_output(named: Sequence[tuple[str, Rollout]]) -> bytes | None:
    outputs = [(name, one.test_output) for name, one in named if one.test_output is not None]
    return _joined(outputs) if outputs else None
