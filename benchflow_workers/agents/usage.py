"""Sums of what agents used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benchflow_client.schema.trial import AgentUsage

__all__ = ["total_usage"]

_COUNTED: Final = (
    "n_tool_calls",
    "n_skill_invocations",
    "n_prompts",
    "n_input_tokens",
    "n_output_tokens",
    "total_tokens",
    "cost_usd",
)


def total_usage(usages: Sequence[AgentUsage]) -> AgentUsage:
    """Return the sum; what is unknown of one is unknown of all. At least one is needed."""

    def whole(name: str) -> Any:
        values = [getattr(usage, name) for usage in usages]
        return None if None in values else sum(values)

    return usages[-1].model_copy(update={name: whole(name) for name in _COUNTED})
