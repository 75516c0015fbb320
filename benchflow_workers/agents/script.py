"""The agent that is a program of the user's: placed read-only, run unprivileged in the workspace.

Contract with the program: it is run once for each prompt. It starts in the workspace (`BENCHFLOW_WORKDIR`), reads the
prompt from the file `BENCHFLOW_INSTRUCTION`, works, and exits 0. The prompt is never an
argument. What it prints is its log. It may append events to `BENCHFLOW_EVENTS`, one JSON
object a line (see `events`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from benchflow_client.errors import AgentError
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun, prompt_bytes
from benchflow_workers.agents.events import EVENTS_PATH
from benchflow_workers.agents.turn import UNLIMITED_S, agent_run, joined_runs
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload
from benchflow_workers.shell_scripts import HEAD_BYTES, interpreter_of, is_shell_script, unix_text

__all__ = ["ScriptAgent"]

AGENT_DIR: Final = "/opt/benchflow/agent"
"""Folder of the program in the sandbox; root's."""

READ_ONLY_EXECUTABLE = 0o555

PYTHON: Final = "python3"
"""What runs `.py` files in the sandbox, whatever their `#!` line says."""

ELF: Final = b"\x7fELF"
"""How a compiled Linux program begins."""

NOT_RUNNABLE: Final = "benchflow-agent: missing"
"""What the program below says on standard error, which the agent itself cannot write to."""

PROGRAM: Final = f"""
user=$1 need=$2
shift 2
if [ -n "$need" ] && ! command -v "$need" >/dev/null 2>&1; then
  echo "{NOT_RUNNABLE} $need" >&2
  exit 127
fi
if [ -n "$user" ] && [ -r /etc/passwd ]; then
  while IFS=: read -r name _ id _ _ home _; do
    if [ "$name" = "$user" ] || [ "$id" = "$user" ]; then
      HOME=$home USER=$name LOGNAME=$name
      export HOME USER LOGNAME
      break
    fi
  done </etc/passwd
fi
export BENCHFLOW_WORKDIR="$(pwd)"
exec "$@" 2>&1
"""
"""Sets the user's home and becomes the agent, both of its streams in one, in order."""


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
        script = _script(context)
        with script.open("rb") as file:
            head = file.read(HEAD_BYTES)
            is_shell = is_shell_script(_name(context), head)
            content = unix_text(head + file.read()) if is_shell else None
        if not (_is_python(context) or head.startswith(ELF) or interpreter_of(head)):
            raise AgentError(
                "agent.not_runnable",
                f"Agent {context.spec.name!r} is neither a .py file nor a program: it begins with "
                f"{head[:12]!r}.",
                hint="Begin a script with a line such as #!/bin/sh.",
            )
        if content is not None:
            return [Upload(_target(context), content=content, mode=READ_ONLY_EXECUTABLE)]
        return [Upload(_target(context), source=script, mode=READ_ONLY_EXECUTABLE)]

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Run the program once for each prompt, until one does not end well or the time is over.

        Raises:
            AgentError: `agent.not_runnable` when the sandbox lacks what runs it.
            SandboxError: The sandbox failed under it.
        """
        deadline = time.monotonic() + (context.timeout_s or UNLIMITED_S)
        runs: list[AgentRun] = []
        for prompt in context.prompts:
            if runs:
                await sandbox.put([Upload(INSTRUCTION_PATH, content=prompt_bytes(prompt), mode=0o644)])
            runs.append(await _run_once(sandbox, context, timeout_s=max(1.0, deadline - time.monotonic())))
            if runs[-1].exit_code != 0:
                break
        return joined_runs(runs)


async def _run_once(sandbox: Sandbox, context: AgentContext, *, timeout_s: float) -> AgentRun:
    target = _target(context)
    argv = [PYTHON, target] if _is_python(context) else [target]
    user = "" if "HOME" in context.env else context.user
    env = {**context.env, "BENCHFLOW_INSTRUCTION": INSTRUCTION_PATH, "BENCHFLOW_EVENTS": EVENTS_PATH}
    done = await sandbox.exec(
        Command(
            ("sh", "-c", PROGRAM, "benchflow-agent", user, _need(context), *argv),
            timeout_s=timeout_s,
            user=context.user,
            env=env,
        )
    )
    _check_started(done, context)
    return agent_run(done, kind="script", command=" ".join(argv))


def _script(context: AgentContext) -> Path:
    """Return the program's file on the worker."""
    if context.script is None or not context.script.is_file():
        raise AgentError(
            "agent.not_runnable",
            f"Agent {context.spec.name!r} names a program that is not there.",
            hint="Name an existing file; `bench agents` lists agents known by name.",
        )
    return context.script


def _name(context: AgentContext) -> str:
    """Return the file name the user gave it, which the copy on the worker need not have."""
    return PurePosixPath(context.spec.name).name


def _target(context: AgentContext) -> str:
    return f"{AGENT_DIR}/{_name(context)}"


def _is_python(context: AgentContext) -> bool:
    return _name(context).endswith(".py")


def _need(context: AgentContext) -> str:
    """Return what the sandbox must have to run the program; empty = nothing."""
    if _is_python(context):
        return PYTHON
    with _script(context).open("rb") as file:
        return interpreter_of(file.read(HEAD_BYTES)) or ""


def _check_started(done: Completed, context: AgentContext) -> None:
    """Tell an agent that ended with 126 or 127 from one that never began."""
    said = done.stderr.decode("utf-8", "replace").strip()
    if not said or done.timed_out:
        return
    missing = said.partition(NOT_RUNNABLE)[2].strip()
    reason = f"it has no {missing}" if missing else said[:300]
    raise AgentError(
        "agent.not_runnable",
        f"Agent {context.spec.name!r} cannot run in the sandbox of task {context.task.name!r}: {reason}.",
        hint="Use a program the task's image can run, or add what is missing to the image.",
    )
