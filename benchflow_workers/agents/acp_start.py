"""How a program that speaks the Agent Client Protocol gets into a sandbox and is started there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchflow_client.catalog.agent_programs import CLAUDE_ACP, Program
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.claude import claude_env
from benchflow_workers.agents.program import APART, program_command, program_uploads, start_command
from benchflow_workers.agents.toolbox import argv_of
from benchflow_workers.sandbox.base import Command, Upload

__all__ = ["CLAUDE", "OfTheUser", "Ready", "Start"]


class Start(Protocol):
    """One way."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the files it needs.

        Raises:
            AgentError: `agent.not_runnable` when there is no such program.
        """
        ...

    def command(self, context: AgentContext, timeout_s: float) -> Command:
        """Return the command that becomes the program."""
        ...


class OfTheUser:
    """A program that travelled with the job."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the program."""
        return program_uploads(context)

    def command(self, context: AgentContext, timeout_s: float) -> Command:
        """Return the command that becomes it."""
        return program_command(context, APART, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready-made program, which is mounted.

    Attributes:
        program: The program.
        env: Returns variables below the agent's own.
    """

    program: Program
    env: Callable[[AgentContext], Mapping[str, str]]

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files."""
        del context
        return ()

    def command(self, context: AgentContext, timeout_s: float) -> Command:
        """Return the command that becomes it."""
        env = {**self.env(context), **context.env}
        return start_command(context, APART, argv_of(self.program), timeout_s=timeout_s, env=env)


CLAUDE = Ready(CLAUDE_ACP, claude_env)
"""Claude behind the protocol."""
