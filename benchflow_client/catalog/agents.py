"""The agents that can be named, as data: what `bench agents` lists and submissions are checked against."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchflow_client.catalog.agent_programs import CLAUDE_ACP, CLAUDE_CODE, CODEX, Program
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_client.catalog.probe import find_trick
from benchflow_client.errors import UnknownAgentError

__all__ = ["AGENTS", "AgentEntry", "find_agent", "list_agents"]

AgentKind = Literal["control", "script", "cli", "acp"]
"""`control` checks the task itself; `script` is a program of the user's; the others are ready-made, and say how
they are talked to: by their command line, or by the Agent Client Protocol."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One line of `bench agents`."""

    name: str  # what `--agent` takes; in capitals a placeholder
    description: str
    kind: AgentKind
    program: Program | None = None  # of a ready-made one; it needs a model

    @property
    def is_control(self) -> bool:
        """Whether summaries keep it apart from agents under test."""
        return self.kind == "control"


AGENTS: dict[str, AgentEntry] = {
    entry.name: entry
    for entry in (
        AgentEntry(
            "claude-code", f"Claude Code {CLAUDE_CODE.version}, by its command line.", "cli", CLAUDE_CODE
        ),
        AgentEntry(
            "claude-agent-acp",
            f"Claude {CLAUDE_ACP.version}, by the Agent Client Protocol.",
            "acp",
            CLAUDE_ACP,
        ),
        AgentEntry("codex-cli", f"Codex {CODEX.version}, by its command line.", "cli", CODEX),
        AgentEntry("nop", "Does nothing; a sound task gives it 0.", "control"),
        AgentEntry("oracle", "Runs the task's own solution; a sound task gives it 1.", "control"),
    )
}
"""Agents known by name."""

SCRIPT = AgentEntry(
    "PATH",
    "Your own program: an executable with a `#!` line, or a .py file run by python3 in the sandbox.",
    "script",
)
"""Not a name, but one more thing `--agent` takes."""

ACP = AgentEntry("acp:PATH", "Your own program, talked to over the Agent Client Protocol.", "script")
"""Not a name either."""

PROBE = AgentEntry(
    f"{PROBE_PREFIX}TRICK",
    "Cheats in one way, to see whether a task can be cheated; `bench probe --list` names the tricks.",
    "control",
)
"""A family of names."""

_CLOSE_ENOUGH = 0.5  # difflib ratio; 'orcale' and 'noop' are above, unrelated words below


def list_agents() -> Sequence[AgentEntry]:
    """Return all that `--agent` takes: names in order, then the cheats, then programs of the user's."""
    return [*sorted(AGENTS.values(), key=lambda entry: entry.name), PROBE, ACP, SCRIPT]


def find_agent(name: str) -> AgentEntry:
    """Return the agent of that name.

    Raises:
        UnknownAgentError: There is none; the hint names the nearest one, and says how a
            script is named.
    """
    if name.startswith(PROBE_PREFIX):
        trick = find_trick(name)
        return AgentEntry(trick.agent, trick.text, "control")
    entry = AGENTS.get(name)
    if entry is not None:
        return entry
    nearest = difflib.get_close_matches(name.lower(), AGENTS, n=1, cutoff=_CLOSE_ENOUGH)
    suggestion = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise UnknownAgentError(
        f"Agent {name!r} is not known.",
        hint=f"{suggestion}`bench agents` lists all; a script is named by its path, such as ./{name}.",
    )
