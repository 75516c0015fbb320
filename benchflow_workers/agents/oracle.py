"""The control that runs the task's own solution: whether the task can be solved at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchflow_client.errors import AgentError
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.turn import UNLIMITED_S, agent_run
from benchflow_workers.sandbox.base import Command, Sandbox, Upload
from benchflow_workers.shell_scripts import unix_copies

__all__ = ["OracleAgent"]

SOLUTION_SCRIPT: Final = "solve.sh"
"""The script of a solution folder that is run."""

PROGRAM: Final = """
if command -v bash >/dev/null 2>&1; then exec bash "$1" 2>&1; fi
exec sh "$1" 2>&1
"""
"""Bash where the image has one; both streams in the order they were written."""

LOCKED_MODE = 0o700


class OracleAgent:
    """Runs `solve.sh` as root in the workspace; its exit code is recorded, the tests decide."""

    @property
    def is_control(self) -> bool:
        """It checks the task, not an agent."""
        return True

    @property
    def runs_as_user(self) -> bool:
        """A solution is the author's and runs as root."""
        return False

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the solution folder, closed to everybody but root.

        Raises:
            AgentError: `agent.no_solution` when the task has no solution script.
        """
        target = _target(context.task)
        folder = _folder(context)
        return [Upload(target, source=folder, mode=LOCKED_MODE), *unix_copies(folder, target)]

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Run the solution.

        Raises:
            AgentError: `agent.no_solution` when the task has no solution script.
            SandboxError: The sandbox failed under it.
        """
        _folder(context)
        script = f"{_target(context.task)}/{SOLUTION_SCRIPT}"
        command = Command(
            ("sh", "-c", PROGRAM, "benchflow-oracle", script),
            timeout_s=context.task.config.oracle.timeout_sec or context.timeout_s or UNLIMITED_S,
            env={"DEBIAN_FRONTEND": "noninteractive", **context.oracle_env},
        )
        return agent_run(await sandbox.exec(command), kind="oracle", command=f"bash {script}")


def _target(task: Task) -> str:
    return f"/{task.oracle_dir}"


def _folder(context: AgentContext) -> Path:
    """Return the solution folder on the worker."""
    folder = None if context.task.oracle_dir is None else context.task_dir / context.task.oracle_dir
    if folder is None or not (folder / SOLUTION_SCRIPT).is_file():
        place = f"{context.task.oracle_dir or 'solution'}/{SOLUTION_SCRIPT}"
        raise AgentError(
            "agent.no_solution",
            f"Task {context.task.name!r} has no {place}: there is no reference solution to run.",
            hint="Add the script, or leave the oracle out for this task.",
        )
    return folder
