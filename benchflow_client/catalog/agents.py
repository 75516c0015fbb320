"""The agents that can be named: what `bench agents` lists and submissions are checked against."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchflow_client.catalog.agent_table import READY
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_client.catalog.probe import find_trick
from benchflow_client.errors import UnknownAgentError
from benchflow_client.schema.agent_definition import AgentDefinition

__all__ = ["AGENTS", "FACTORY_PREFIX", "AgentEntry", "find_agent", "list_agents"]

AgentKind = Literal["control", "script", "cli", "acp", "factory"]
"""`control` checks the task itself; `script` is a program of the user's; `cli` and `acp` are ready-made, and say
how they are talked to; `factory` is Python code that is installed where the workers run."""

FACTORY_PREFIX = "factory:"
"""Names agents that are installed on the workers."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One line of `bench agents`."""

    name: str  # what `--agent` takes; in capitals a placeholder
    description: str
    kind: AgentKind
    definition: AgentDefinition | None = None  # of a ready-made one

    @property
    def is_control(self) -> bool:
        """Whether summaries keep it apart from agents under test."""
        return self.kind == "control"

    @property
    def needs_model(self) -> bool:
        """Whether it cannot work unless the job names a model."""
        definition = self.definition
        return definition is not None and definition.needs_model and definition.default_model is None

    @classmethod
    def of(cls, definition: AgentDefinition) -> AgentEntry:
        """Return the line of a ready-made agent."""
        kind: AgentKind = "acp" if definition.protocol == "acp" else "cli"
        return cls(definition.name, definition.description, kind, definition)


AGENTS: dict[str, AgentEntry] = {
    entry.name: entry
    for entry in (
        *map(AgentEntry.of, READY),
        AgentEntry("nop", "Does nothing; a sound task gives it 0.", "control"),
        AgentEntry("oracle", "Runs the solution; a sound task gives it 1.", "control"),
    )
}
"""Agents of this version by name."""

SCRIPT = AgentEntry(
    "PATH",
    "Your own program or .py file.",
    "script",
)
"""Not a name, but one more thing `--agent` takes."""

ACP = AgentEntry("acp:PATH", "Your own program of that protocol.", "script")
"""Not a name either."""

PROBE = AgentEntry(
    f"{PROBE_PREFIX}TRICK",
    "Cheats in one way: `bench probe --list`.",
    "control",
)
"""A family of names."""

FACTORY = AgentEntry(f"{FACTORY_PREFIX}NAME", "Your own Python code on the workers.", "factory")
"""Another family."""

_CLOSE_ENOUGH = 0.5  # difflib ratio; 'orcale' and 'noop' are above, unrelated words below


def list_agents(own: Mapping[str, AgentEntry] | None = None) -> Sequence[AgentEntry]:
    """Return all that `--agent` takes: names in order, then the cheats, then programs of the user's.

    Args:
        own: Agents by name beside those of this version.
    """
    named = {**AGENTS, **(own or {})}
    return [*sorted(named.values(), key=lambda entry: entry.name), PROBE, FACTORY, ACP, SCRIPT]


def find_agent(name: str, own: Mapping[str, AgentEntry] | None = None) -> AgentEntry:
    """Return the agent of a name or an alias.

    Args:
        name: The name.
        own: Agents by name beside those of this version.

    Raises:
        UnknownAgentError: There is none; the hint names the nearest one, and says how a
            script is named.
    """
    if name.startswith(PROBE_PREFIX):
        trick = find_trick(name)
        return AgentEntry(trick.agent, trick.text, "control")
    if name.startswith(FACTORY_PREFIX) and len(name) > len(FACTORY_PREFIX):
        return AgentEntry(name, FACTORY.description, "factory")
    known = {**AGENTS, **(own or {})}
    entry = known.get(name) or _by_alias(known).get(name)
    if entry is not None:
        return entry
    nearest = difflib.get_close_matches(name.lower(), [*known, *_by_alias(known)], n=1, cutoff=_CLOSE_ENOUGH)
    suggestion = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise UnknownAgentError(
        f"Agent {name!r} is not known.",
        hint=f"{suggestion}`bench agents` lists all; a script is named by its path, such as ./{name}.",
    )


def _by_alias(known: Mapping[str, AgentEntry]) -> Mapping[str, AgentEntry]:
    return {
        alias: entry
        for entry in known.values()
        if entry.definition is not None
        for alias in entry.definition.aliases
    }
