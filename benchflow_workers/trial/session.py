"""The record of one run of an agent among several of a trial."""

from __future__ import annotations

from dataclasses import dataclass

from benchflow_workers.agents.base import Agent, AgentContext

__all__ = ["Session"]


@dataclass(frozen=True, slots=True)
class Session:
    """Who is to work next, and on what.

    Attributes:
        turns: Ids of the turns it is made of.
        scene: Name of the scene; None = the task has none.
        role: Name of the role; None = the task has none.
        label: What the agent is called.
        agent: Who works.
        context: What the agent may know; its prompts are those of the turns.
        workshop: Folder it is to write skills in, which later sessions need however it ended; empty = it does the task.
    """

    turns: tuple[str, ...]
    scene: str | None
    role: str | None
    label: str
    agent: Agent
    context: AgentContext
    workshop: str = ""
