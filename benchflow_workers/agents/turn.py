"""One command as an agent's turn: its time limit, its log, its one event."""

from __future__ import annotations

from typing import Final

from benchflow_workers.agents.base import AgentRun
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import Completed

__all__ = ["UNLIMITED_S", "agent_run"]

UNLIMITED_S: Final = 86_400.0
"""Seconds for a turn without a cap of its own: every wait has an end, and no sandbox is kept longer."""


def agent_run(done: Completed, *, kind: str, command: str) -> AgentRun:
    """Return the record of a turn that was one command.

    The exit code of a killed command says nothing about the agent, so it is left out.
    """
    exit_code = None if done.timed_out else done.exit_code
    event = {"type": kind, "command": command, "return_code": exit_code, "stdout": tail_text(done.stdout)}
    log = with_gap_marked(done.stdout, done.stdout_bytes)
    return AgentRun(exit_code=exit_code, timed_out=done.timed_out, events=(event,), log=log)
