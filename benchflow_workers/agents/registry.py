"""From an agent's name to the agent; each kind is imported when first used."""

from __future__ import annotations

import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from benchflow_client.catalog.agents import FACTORY_PREFIX, find_agent
from benchflow_client.catalog.probe import PREFIX as PROBE_PREFIX
from benchflow_client.errors import MissingExtraError
from benchflow_client.ledger.rates import Rates
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_workers.agents.base import Agent
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.gateway.translator import Translators

__all__ = ["ACP", "SCRIPT", "Metering", "agent_of", "kind_of"]

SCRIPT: Final = "script"
"""Kind of the agent that runs a program of the user's."""

ACP: Final = "acp"
"""Kind of the agent that speaks the Agent Client Protocol with a program of the user's."""

_READY: Final = "ready:"
"""Begins the kind of a ready-made agent; its protocol follows."""

_PLACES: Final = {
    ACP: "benchflow_workers.agents.acp:AcpAgent",
    FACTORY_PREFIX: "benchflow_workers.agents.factory:FactoryAgent",
    "nop": "benchflow_workers.agents.nop:NopAgent",
    "oracle": "benchflow_workers.agents.oracle:OracleAgent",
    PROBE_PREFIX: "benchflow_workers.agents.probe:ProbeAgent",
    f"{_READY}acp": "benchflow_workers.agents.acp:ready_acp",
    f"{_READY}claude-stream": "benchflow_workers.agents.cli_claude:claude_stream",
    f"{_READY}codex-events": "benchflow_workers.agents.cli_codex:codex_events",
    f"{_READY}openhands-events": "benchflow_workers.agents.cli_openhands:openhands_events",
    f"{_READY}pi-events": "benchflow_workers.agents.cli_pi:pi_events",
    f"{_READY}text": "benchflow_workers.agents.cli_text:plain_text",
    SCRIPT: "benchflow_workers.agents.script:ScriptAgent",
}


def kind_of(spec: AgentSpec, definition: AgentDefinition | None = None) -> str:
    """Return the kind by which `agent_of` finds what runs an agent of a job."""
    if definition is not None:
        return _READY + definition.protocol
    if spec.protocol is not None:
        return ACP
    return SCRIPT if spec.is_script else spec.name


def agent_of(kind: str) -> Agent:
    """Return the agent of a kind.

    Args:
        kind: What `kind_of` returned: the name of an agent that is none of a program, or a kind.

    Raises:
        UnknownAgentError: No agent of that name is known.
        MissingExtraError: Its extra is not installed.
    """
    module, _, attribute = _PLACES[_place(kind)].partition(":")
    try:
        return cast("Agent", getattr(import_module(module), attribute)())
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise MissingExtraError("An agent of the Agent Client Protocol", "acp") from error


def _place(kind: str) -> str:
    if kind in _PLACES:
        return kind
    name = find_agent(kind).name
    return next((prefix for prefix in (PROBE_PREFIX, FACTORY_PREFIX) if name.startswith(prefix)), name)


class Metering:
    """Gives agents a model through this worker's gateway, which starts with the first of them.

    Args:
        prices: File with the operator's own prices; None = only those that are maintained elsewhere.
        listen: Where the gateway takes calls from other hosts, `HOST:PORT`; empty = nowhere.
        public_url: What they call it.
        rates: How often the whole fleet may ask models; None = there are no limits.
        translators: Stand between agents and providers that speak nothing they do; None = some of its own.
    """

    def __init__(
        self,
        prices: Path | None = None,
        *,
        listen: str = "",
        public_url: str = "",
        rates: Rates | None = None,
        translators: Translators | None = None,
    ) -> None:
        self._prices = prices
        self._listen = listen
        self._public_url = public_url
        self._rates = rates
        self._translators = translators or Translators(Path(tempfile.gettempdir()) / "bench-translators", {})
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
            AgentError: `agent.provider_failed`: what translates calls to this provider does not start.
        """
        try:
            metered = import_module("benchflow_workers.agents.metered")
            with self._lock:
                gateway = self._made_gateway()
                purse = self._purses.get(file)
                if purse is None:
                    purse = import_module("benchflow_workers.gateway.purse").Purse(allowance)
                    self._purses[file] = purse
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            raise MissingExtraError("A model behind the gateway", "gateway") from error
        translated = None if target.translation is None else self._translators.running(target.translation)
        made = metered.MeteredAgent(agent, gateway, target, purse, file, masks, translated)
        return cast("Agent", made)

    def start(self) -> None:
        """Take the place where other hosts reach the gateway, where there is one; else do nothing yet.

        Raises:
            MissingExtraError: The gateway's extra is not installed.
            WorkerError: The place is taken, or not this host's; the file of prices cannot be read.
        """
        if not self._listen:
            return
        try:
            with self._lock:
                self._made_gateway().start()
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            raise MissingExtraError("A model behind the gateway", "gateway") from error

    def _made_gateway(self) -> Any:
        """Return the gateway, made by whoever asks first and holds the lock."""
        if self._gateway is None:
            server = import_module("benchflow_workers.gateway.server")
            prices = import_module("benchflow_workers.gateway.prices").read_prices(self._prices)
            public = server.listen_publicly(self._listen, self._public_url) if self._listen else None
            self._gateway = server.Gateway(prices, public, rates=self._rates)
        return self._gateway

    def close(self) -> None:
        """Stop the gateway and what translates for it, where they were started."""
        with self._lock:
            if self._gateway is not None:
                self._gateway.close()
                self._gateway = None
        self._translators.close()


def _is_ours(error: ModuleNotFoundError) -> bool:
    """Return whether a module is missing that no extra brings."""
    return (error.name or "").startswith("benchflow")
