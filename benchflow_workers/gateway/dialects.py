"""The dialects a gateway speaks, and which one a request is of."""

from __future__ import annotations

from typing import Final

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import DialectRules
from benchflow_workers.gateway.dialect_chat import ChatCompletions
from benchflow_workers.gateway.dialect_generate import GenerateContent
from benchflow_workers.gateway.dialect_messages import Messages
from benchflow_workers.gateway.dialect_responses import Responses

__all__ = ["RULES", "dialect_of"]

RULES: Final[dict[Dialect, DialectRules]] = {
    rules.name: rules for rules in (ChatCompletions(), Responses(), Messages(), GenerateContent())
}
"""Every dialect by name."""


def dialect_of(method: str, path: str) -> DialectRules | None:
    """Return the dialect of a request; None = it is of none."""
    return next((rules for rules in RULES.values() if rules.serves(method, path)), None)
