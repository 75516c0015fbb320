"""How a call is put to a provider: as the agent did, with what makes it tell its usage and its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchflow_workers.gateway.dialect import DialectRules, Document
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.sampling import sampled
from benchflow_workers.gateway.target import Capture, Sampling

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


def wordings(rules: DialectRules, path: str, asked: Document, grant: Grant) -> Iterator[Wording]:
    """Yield the ways to put a call, the one that asks for most first; the last is as near to the agent's as can be.

    What a job asks for stands in all of them: a provider that does not take it says so to the agent.
    """
    target, capture = grant.target, grant.capture
    sampling = target.sampling if rules.is_generation(path) else Sampling()
    asked, chosen = sampled(rules.name, target.provider, asked, sampling)
    prepared = rules.prepared(asked)
    usage = chosen if prepared is None else (*chosen, "usage")
    if prepared is None and chosen:
        prepared = asked
    if rules.name == CAPTURED_DIALECT:
        for level in range(capture, Capture.NOTHING, -1):
            asks = _ASKS[Capture(level)]
            added = tuple(name for name in asks if asked.get(name) is not True)
            if not added:  # the agent asks for it itself
                yield Wording(Capture(level), usage, prepared)
                return
            yield Wording(Capture(level), (*usage, *added), {**(prepared or asked), **asks})
    yield Wording(Capture.NOTHING, usage, prepared)
