"""Agents beside those of this version: of a folder of manifests, and of packages that are installed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from benchflow_client.catalog.agents import AGENTS, AgentEntry
from benchflow_client.catalog.manifests import read_manifests
from benchflow_client.schema.agent_definition import AgentDefinition, Login

__all__ = ["GROUP", "known_logins", "own_agents"]

GROUP: Final = "benchflow.agents"
"""Each entry point is an `AgentDefinition`, or is called without arguments and returns one or several."""

logger = logging.getLogger(__name__)


def own_agents(folder: Path | None) -> Mapping[str, AgentEntry]:
    """Return agents by name; one of a package stands in the place of any other of its name.

    A package that cannot be loaded is left out, and the log says why.

    Args:
        folder: Of manifests; None = there is none.

    Raises:
        AgentManifestError: See `read_manifests`.
    """
    found = {} if folder is None else dict(read_manifests(folder))
    for point in entry_points(group=GROUP):
        found.update({one.name: AgentEntry.of(one) for one in _loaded(point)})
    return found


def known_logins() -> Mapping[str, Login]:
    """Return the logins of the agents that are known here, by the agent's name; what a plan says of them does not count."""
    entries = {**AGENTS, **own_agents(None)}.values()
    known = {entry.name: entry.definition.login for entry in entries if entry.definition is not None}
    return {name: login for name, login in known.items() if login is not None}


def _loaded(point: EntryPoint) -> tuple[AgentDefinition, ...]:
    try:
        value = point.load()
        made = value() if callable(value) else value
        items = (
            tuple(made) if isinstance(made, Iterable) and not isinstance(made, AgentDefinition) else (made,)
        )
        if all(isinstance(item, AgentDefinition) for item in items):
            return items
        reason = f"it is {type(made).__name__}, not AgentDefinition"
    except (Exception, SystemExit) as error:  # ruff: ignore[blind-except]  somebody else's code
        reason = f"{type(error).__name__}: {error}"
    logger.warning(
        "agents of the package with the entry point %s = %s are left out: %s", point.name, point.value, reason,
        extra={"action": "agents_left_out"},
    )  # fmt: skip
    return ()
