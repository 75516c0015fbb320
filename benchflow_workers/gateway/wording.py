"""How a call is put to a provider: as the agent did, with what makes it tell its usage and its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow_workers.gateway.dialect import DialectRules, Document
from benchflow_workers.gateway.target import Capture

__all__ = ["CAPTURED_DIALECT", "Wording", "wordings"]

CAPTURED_DIALECT: Final = "openai-completions"
"""The one dialect in which a server can be asked for its tokens."""

_ASKS: Final[Mapping[Capture, Mapping[str, Any]]] = {
    Capture.NOTHING: {},
    Capture.LOGPROBS: {"logprobs": True},
    Capture.TOKENS: {"logprobs": True, "return_token_ids": True},  # the second is known to vLLM
}


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to put a call.

    Attributes:
        capture: What it asks for beside what the agent asks.
        added: Names of what the agent did not ask for.
        changed: The body as it is sent; None = as it came.
    """

    capture: Capture
    added: tuple[str, ...]
    changed: Document | None

    def body(self, came: bytes) -> bytes:
        """Return the bytes that are sent."""
        return came if self.changed is None else json.dumps(self.changed).encode()


def wordings(rules: DialectRules, asked: Document, capture: Capture) -> Iterator[Wording]:
    """Yield the ways to put a call, the one that asks for most first; the last is as near to the agent's as can be."""
    prepared = rules.prepared(asked)
    usage = () if prepared is None else ("usage",)
    if rules.name == CAPTURED_DIALECT:
        for level in range(capture, Capture.NOTHING, -1):
            asks = _ASKS[Capture(level)]
            added = tuple(name for name in asks if asked.get(name) is not True)
            if not added:  # the agent asks for it itself
                yield Wording(Capture(level), usage, prepared)
                return
            yield Wording(Capture(level), (*usage, *added), {**(prepared or asked), **asks})
    yield Wording(Capture.NOTHING, usage, prepared)
