"""A program of the user's as an agent: placed read-only, started unprivileged in the workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from benchflow_client.errors import AgentError
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext
from benchflow_workers.agents.turn import UNLIMITED_S
from benchflow_workers.sandbox.base import Command, Upload
from benchflow_workers.shell_scripts import HEAD_BYTES, interpreter_of, is_shell_script, unix_text

__all__ = [
    "FIND_HOME",
    "HOME_DIR",
    "check_started",
    "program_argv",
    "program_command",
    "program_uploads",
    "start_command",
]

AGENT_DIR: Final = "/opt/benchflow/agent"
"""Folder of the program in the sandbox; root's."""

READ_ONLY_EXECUTABLE = 0o555

PYTHON: Final = "python3"
"""What runs `.py` files in the sandbox, whatever their `#!` line says."""

HOME_DIR: Final = "/opt/benchflow/home"
"""Folder whose content is copied into the agent's home folder when it starts."""

ELF: Final = b"\x7fELF"
"""How a compiled Linux program begins."""

NOT_RUNNABLE: Final = "benchflow-agent: missing"
"""What the script below says on standard error before the program began."""

FIND_HOME: Final = """
if [ -n "$user" ] && [ -r /etc/passwd ]; then
  while IFS=: read -r name _ id _ _ home _; do
    if [ "$name" = "$user" ] || [ "$id" = "$user" ]; then
      HOME=$home USER=$name LOGNAME=$name
      export HOME USER LOGNAME
      break
    fi
  done </etc/passwd
fi
"""
"""Sets the home folder of the user in `$user`; empty = it is set already."""

_START: Final = f"""
user=$1 need=$2
shift 2
if [ -n "$need" ] && ! command -v "$need" >/dev/null 2>&1; then
  echo "{NOT_RUNNABLE} $need" >&2
  exit 127
fi
{FIND_HOME}
export BENCHFLOW_WORKDIR="$(pwd)"
if [ -d {HOME_DIR} ] && [ -n "${{HOME:-}}" ]; then
  mkdir -p "$HOME" && cp -R {HOME_DIR}/. "$HOME"/
fi
"""
"""Sets the user's home and copies what stands ready for it; what follows becomes the program."""

APART: Final = _START + 'exec "$@"\n'
"""Starts the program with its streams apart, for protocols."""

TOGETHER: Final = _START + 'exec "$@" 2>&1\n'
"""Starts the program with both of its streams in one, in order, for logs."""


FROM_PROMPT: Final = _START + 'exec "$@" <"$BENCHFLOW_INSTRUCTION"\n'
"""Starts the program with its streams apart and the prompt on its standard input."""


def program_uploads(context: AgentContext) -> Sequence[Upload]:
    """Return the program as it is placed in the sandbox.

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
            f"Agent {context.spec.name!r} is neither a .py file nor a program: it begins with {head[:12]!r}.",
            hint="Begin a script with a line such as #!/bin/sh.",
        )
    if content is not None:
        return [Upload(_target(context), content=content, mode=READ_ONLY_EXECUTABLE)]
    return [Upload(_target(context), source=script, mode=READ_ONLY_EXECUTABLE)]


def program_argv(context: AgentContext) -> list[str]:
    """Return the program's own command line."""
    target = _target(context)
    return [PYTHON, target] if _is_python(context) else [target]


def program_command(
    context: AgentContext, start: str, *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Command:
    """Return the command that becomes the program, as the agent's user.

    Args:
        context: The agent.
        start: `APART`, `TOGETHER` or `FROM_PROMPT`.
        timeout_s: Seconds it may take.
        env: Variables on top of the agent's.
    """
    return start_command(
        context, start, program_argv(context), need=_need(context), timeout_s=timeout_s, env=env
    )


def start_command(
    context: AgentContext,
    start: str,
    argv: Sequence[str],
    *,
    need: str = "",
    timeout_s: float = UNLIMITED_S,
    env: Mapping[str, str] | None = None,
) -> Command:
    """Return the command that becomes any program, as the agent's user.

    Args:
        context: The agent.
        start: `APART`, `TOGETHER` or `FROM_PROMPT`.
        argv: The program and its arguments.
        need: What the sandbox must have to run it; empty = nothing.
        timeout_s: Seconds it may take.
        env: Variables on top of the agent's.
    """
    user = "" if "HOME" in context.env else context.user
    return Command(
        ("sh", "-c", start, "benchflow-agent", user, need, *argv),
        timeout_s=timeout_s,
        user=context.user,
        env={**context.env, "BENCHFLOW_INSTRUCTION": INSTRUCTION_PATH, **(env or {})},
    )


def check_started(context: AgentContext, exit_code: int, said: bytes) -> None:
    """Tell a program that ended with 126 or 127 from one that never began.

    Args:
        context: The agent.
        exit_code: Its exit code.
        said: What came on a stream the program itself did not write to.

    Raises:
        AgentError: `agent.not_runnable` when the sandbox lacks what runs it.
    """
    text = said.decode("utf-8", "replace").strip()
    if not text or exit_code not in {126, 127}:
        return
    missing = text.partition(NOT_RUNNABLE)[2].strip()
    reason = f"it has no {missing}" if missing else text[:300]
    raise AgentError(
        "agent.not_runnable",
        f"Agent {context.spec.name!r} cannot run in the sandbox of task {context.task.name!r}: {reason}.",
        hint="Use a program the task's image can run, or add what is missing to the image.",
    )


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
