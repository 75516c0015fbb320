"""From an agent's name to the agent; each kind is imported when first used."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from benchflow_client.catalog.agents import find_agent
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_client.errors import MissingExtraError
from benchflow_client.schema.agent import AgentSpec
from benchflow_workers.agents.base import Agent
from benchflow_workers.gateway.target import Allowance, Target

__all__ = ["ACP", "SCRIPT", "Metering", "agent_of", "kind_of"]

SCRIPT: Final = "script"
"""Name of the agent that runs a program of the user's."""

ACP: Final = "acp"
"""Name of the agent that speaks the Agent Client Protocol with a program of the user's."""

_PLACES = {
    ACP: "benchflow_workers.agents.acp:AcpAgent",
    "claude-agent-acp": "benchflow_workers.agents.acp:claude_agent_acp",
    "claude-code": "benchflow_workers.agents.cli_claude:claude_code",
    "codex-cli": "benchflow_workers.agents.cli_codex:codex_cli",
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
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise MissingExtraError("An agent of the Agent Client Protocol", "acp") from error


class Metering:
    """Gives agents a model through this worker's gateway, which starts with the first of them.

    Args:
        prices: File with the operator's own prices; None = only those that are maintained elsewhere.
    """

    def __init__(self, prices: Path | None = None) -> None:
        self._prices = prices
        self._lock = threading.Lock()
        self._gateway: Any = None
        self._purses: WeakValueDictionary[Path, Any] = WeakValueDictionary()

    def metered(self, agent: Agent, target: Target, allowance: Allowance, *, file: Path, masks: Any) -> Agent:
        """Return the agent with a model.

        Args:
            agent: Who works.
            target: The model.
            allowance: What may be used of it by all turns that are recorded in the same file.
            file: Where calls are recorded.
            masks: Keeps secrets out of records; see `gateway.grants.Masks`.

        Raises:
            MissingExtraError: The gateway's extra is not installed.
            WorkerError: The file of prices cannot be read.
        """
        try:
            metered = import_module("benchflow_workers.agents.metered")
            with self._lock:
                if self._gateway is None:
                    prices = import_module("benchflow_workers.gateway.prices").read_prices(self._prices)
                    self._gateway = import_module("benchflow_workers.gateway.server").Gateway(prices)
                purse = self._purses.get(file)
                if purse is None:
                    purse = import_module("benchflow_workers.gateway.purse").Purse(allowance)
                    self._purses[file] = purse
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("benchflow"):
                raise
            raise MissingExtraError("A model behind the gateway", "gateway") from error
        made = metered.MeteredAgent(agent, self._gateway, target, purse, file, masks)
        return cast("Agent", made)

    def close(self) -> None:
        """Stop the gateway, if it was started."""
        with self._lock:
            if self._gateway is not None:
                self._gateway.close()
                self._gateway = None
