"""The agent that is a program of the user's: placed read-only, run unprivileged in the workspace.

Contract with the program: it is run once for each prompt. It starts in the workspace
(`BENCHFLOW_WORKDIR`), reads the prompt from the file `BENCHFLOW_INSTRUCTION`, works, and
exits 0. The prompt is never an argument. What it prints is its log. It may append events
to `BENCHFLOW_EVENTS`, one JSON object a line (see `events`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun, prompt_bytes
from benchflow_workers.agents.events import EVENTS_PATH
from benchflow_workers.agents.program import (
    TOGETHER,
    check_started,
    program_argv,
    program_command,
    program_uploads,
)
from benchflow_workers.agents.turn import UNLIMITED_S, agent_run, joined_runs
from benchflow_workers.sandbox.base import Sandbox, Upload

__all__ = ["ScriptAgent"]


class ScriptAgent:
    """Runs `AgentContext.script`."""

    @property
    def is_control(self) -> bool:
        """It is an agent under test."""
        return False

    @property
    def runs_as_user(self) -> bool:
        """It runs as the unprivileged user."""
        return True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the program.

        Raises:
            AgentError: `agent.not_runnable` when there is no such file, or nothing could run it.
        """
        return program_uploads(context)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Run the program once for each prompt, until one does not end well or the time is over.

        Raises:
            AgentError: `agent.not_runnable` when the sandbox lacks what runs it.
            SandboxError: The sandbox failed under it.
        """
        left_s = context.timeout_s or UNLIMITED_S
        runs: list[AgentRun] = []
        for prompt in context.prompts:
            started = time.monotonic()
            if runs:
                await sandbox.put([Upload(INSTRUCTION_PATH, content=prompt_bytes(prompt), mode=0o644)])
            runs.append(await _run_once(sandbox, context, timeout_s=left_s))
            left_s = max(1.0, left_s - (time.monotonic() - started))
            if runs[-1].exit_code != 0:
                break
        return joined_runs(runs)


async def _run_once(sandbox: Sandbox, context: AgentContext, *, timeout_s: float) -> AgentRun:
    env = {"BENCHFLOW_EVENTS": EVENTS_PATH}
    done = await sandbox.exec(program_command(context, TOGETHER, timeout_s=timeout_s, env=env))
    if not done.timed_out:
        # The program's own words are on the other stream.
        check_started(context, done.exit_code, done.stderr)
    return agent_run(done, kind="script", command=" ".join(program_argv(context)))
