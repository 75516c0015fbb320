"""One command as an agent's turn: its time limit, its log, its one event; several of them as one turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchflow_workers.agents.base import AgentRun
from benchflow_workers.agents.usage import total_usage
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import Completed

__all__ = ["UNLIMITED_S", "agent_run", "joined_runs"]

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


def joined_runs(runs: Sequence[AgentRun]) -> AgentRun:
    """Return what several runs of an agent, one after the other, left together; the last one tells the end.

    Numbers that are unknown of one of them are unknown of all.
    """
    if len(runs) == 1:
        return runs[0]
    return AgentRun(
        exit_code=runs[-1].exit_code,
        timed_out=runs[-1].timed_out,
        events=[event for run in runs for event in run.events],
        log=b"".join(run.log for run in runs),
        usage=total_usage([run.usage for run in runs]),
        failures=[failure for run in runs for failure in run.failures],
        is_broken=any(run.is_broken for run in runs),
        version=runs[-1].version,
    )
