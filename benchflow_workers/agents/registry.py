"""From an agent's name to the agent; each kind is imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from benchflow_client.catalog.agents import find_agent
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_client.errors import MissingExtraError
from benchflow_client.schema.agent import AgentSpec
from benchflow_workers.agents.base import Agent

__all__ = ["ACP", "SCRIPT", "agent_of", "kind_of"]

SCRIPT: Final = "script"
"""Name of the agent that runs a program of the user's."""

ACP: Final = "acp"
"""Name of the agent that speaks the Agent Client Protocol with a program of the user's."""

_PLACES = {
    ACP: "benchflow_workers.agents.acp:AcpAgent",
    "nop": "benchflow_workers.agents.nop:NopAgent",
    "oracle": "benchflow_workers.agents.oracle:OracleAgent",
    PROBE_PREFIX: "benchflow_workers.agents.probe:ProbeAgent",
    SCRIPT: "benchflow_workers.agents.script:ScriptAgent",
}


def kind_of(spec: AgentSpec) -> str:
    """Return the name by which `agent_of` finds what runs an agent of a job."""
    if spec.protocol is not None:
        return ACP
    return SCRIPT if spec.is_script else spec.name


def agent_of(name: str) -> Agent:
    """Return the agent of a name.

    Args:
        name: A registered name, or `script` or `acp` for a program of the user's.

    Raises:
        UnknownAgentError: No agent of that name is known.
        MissingExtraError: Its extra is not installed.
    """
    known = name if name in {SCRIPT, ACP} else find_agent(name).name
    place = _PLACES[PROBE_PREFIX if known.startswith(PROBE_PREFIX) else known]
    module, _, attribute = place.partition(":")
    try:
        return cast("Agent", getattr(import_module(module), attribute)())
    except ModuleNotFoundError as error:
        if known != ACP or (error.name or "").startswith("benchflow"):
            raise
        raise MissingExtraError("An agent of the Agent Client Protocol", "acp") from error
