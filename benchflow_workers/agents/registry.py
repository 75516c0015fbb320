"""From an agent's name to the agent; each kind is imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from benchflow_client.catalog.agents import find_agent
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_workers.agents.base import Agent

__all__ = ["SCRIPT", "agent_of"]

SCRIPT: Final = "script"
"""Name of the agent that runs a program of the user's."""

_PLACES = {
    "nop": "benchflow_workers.agents.nop:NopAgent",
    "oracle": "benchflow_workers.agents.oracle:OracleAgent",
    PROBE_PREFIX: "benchflow_workers.agents.probe:ProbeAgent",
    SCRIPT: "benchflow_workers.agents.script:ScriptAgent",
}


def agent_of(name: str) -> Agent:
    """Return the agent of a name.

    Args:
        name: A registered name, or `script` for a program of the user's.

    Raises:
        UnknownAgentError: No agent of that name is known.
    """
    known = name if name == SCRIPT else find_agent(name).name
    place = _PLACES[PROBE_PREFIX if known.startswith(PROBE_PREFIX) else known]
    module, _, attribute = place.partition(":")
    return cast("Agent", getattr(import_module(module), attribute)())
