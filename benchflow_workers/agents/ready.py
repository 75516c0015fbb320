"""How a program gets into a sandbox and is started there: of the user's, of the toolbox, or installed inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Npm
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.launch import Started, definition_of, started
from benchflow_workers.agents.program import (
    APART,
    FROM_PROMPT,
    program_command,
    program_uploads,
    start_command,
)
from benchflow_workers.agents.toolbox import toolbox_argv
from benchflow_workers.agents.turn import UNLIMITED_S
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import ROOT, Command, Sandbox, Upload

__all__ = ["Installs", "OfTheUser", "Ready", "Start", "install", "prompt_command", "session_command"]

INSTALL_DIR: Final = "/opt/benchflow"
"""Folder that scripts install into; it is there when they are run."""


@runtime_checkable
class Installs(Protocol):
    """An agent that is installed in each sandbox."""

    async def install(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Install it, before the network of its turn.

        Raises:
            AgentError: `agent.install_failed`.
            SandboxError: The sandbox failed under it.
        """
        ...


class Start(Protocol):
    """One way in which a program that is talked to gets there."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the files it needs before its turn.

        Raises:
            AgentError: `agent.not_runnable` when there is no such program.
        """
        ...

    async def command(self, sandbox: Sandbox, context: AgentContext, timeout_s: float) -> Command:
        """Place what is only known now, and return the command that becomes the program.

        Raises:
            AgentError: `agent.not_runnable`.
            SandboxError: The sandbox failed under it.
        """
        ...


class OfTheUser:
    """A program that travelled with the job."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the program."""
        return program_uploads(context)

    async def command(self, sandbox: Sandbox, context: AgentContext, timeout_s: float) -> Command:
        """Return the command that becomes it."""
        del sandbox
        return program_command(context, APART, timeout_s=timeout_s)


class Ready:
    """A ready-made program."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files: its program is mounted or installed."""
        del context
        return ()

    async def command(self, sandbox: Sandbox, context: AgentContext, timeout_s: float) -> Command:
        """Place its files and return the command that becomes it."""
        with_all = started(context)
        await sandbox.put(with_all.uploads())
        return session_command(context, with_all, timeout_s=timeout_s)


def session_command(context: AgentContext, what: Started, *, timeout_s: float) -> Command:
    """Return the command that becomes a program which is talked to."""
    argv = [*_argv(definition_of(context)), *what.arguments]
    return start_command(context, APART, argv, timeout_s=timeout_s, env=what.env)


def prompt_command(context: AgentContext, what: Started, *, is_first: bool) -> Command:
    """Return the command that becomes a program which reads one prompt from its standard input."""
    arguments = what.arguments if is_first or what.later is None else what.later
    argv = [*_argv(definition_of(context)), *arguments]
    return start_command(context, FROM_PROMPT, argv, timeout_s=UNLIMITED_S, env=what.env)


async def install(sandbox: Sandbox, context: AgentContext) -> None:
    """Install a program in a sandbox, where its definition has a script for it.

    Raises:
        AgentError: `agent.install_failed`: the script did not end well.
        SandboxError: The sandbox failed under it.
    """
    definition = context.definition
    if definition is None or not isinstance(definition.install, InSandbox):
        return
    script = f"mkdir -p {INSTALL_DIR}\n{_versioned(definition.install.script, definition)}"
    timeout_s = definition.install.timeout_s
    done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=timeout_s, user=ROOT))
    if done.exit_code == 0 and not done.timed_out:
        return
    how = f"was not over after {timeout_s:g} s" if done.timed_out else f"ended with {done.exit_code}"
    raise AgentError(
        "agent.install_failed",
        f"The script that installs agent {definition.name!r} in the sandbox of task {context.task.name!r} {how}: "
        f"{tail_text(done.stderr or done.stdout).strip()}",
        hint="It needs a network at this point and what the script calls; an image that has the agent already is faster.",
    )


def _argv(definition: AgentDefinition) -> Sequence[str]:
    if isinstance(definition.install, Npm):
        return toolbox_argv(definition)
    return ["sh", "-c", _versioned(definition.install.command, definition), definition.name]


def _versioned(text: str, definition: AgentDefinition) -> str:
    return text.replace("${version}", definition.version)
