"""Self-hosted, distributed runs of agent benchmarks: the client."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from benchflow_client.version import __version__ as __version__

if TYPE_CHECKING:
    from benchflow_client.api import Client
    from benchflow_client.errors import BenchflowError
    from benchflow_client.handle import JobHandle
    from benchflow_client.ledger.admission import Limit
    from benchflow_client.schema.agent import AgentSpec
    from benchflow_client.schema.job import JobSpec
    from benchflow_client.schema.summary import Summary
    from benchflow_client.schema.trial import TrialResult
    from benchflow_client.spending import Caps

__all__ = [
    "AgentSpec",
    "BenchflowError",
    "Caps",
    "Client",
    "JobHandle",
    "JobSpec",
    "Limit",
    "Summary",
    "TrialResult",
]

_PLACES = {
    "AgentSpec": "benchflow_client.schema.agent",
    "BenchflowError": "benchflow_client.errors",
    "Caps": "benchflow_client.spending",
    "Client": "benchflow_client.api",
    "JobHandle": "benchflow_client.handle",
    "JobSpec": "benchflow_client.schema.job",
    "Limit": "benchflow_client.ledger.admission",
    "Summary": "benchflow_client.schema.summary",
    "TrialResult": "benchflow_client.schema.trial",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `bench --help` stays quick."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
