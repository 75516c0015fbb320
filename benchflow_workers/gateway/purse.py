"""What all turns of one attempt may use together."""

from __future__ import annotations

import threading

from benchflow_workers.gateway.dialect import Tokens
from benchflow_workers.gateway.prices import Cost
from benchflow_workers.gateway.target import Allowance

__all__ = ["Purse"]


class Purse:
    """An allowance and what was taken from it; safe to use from any thread.

    Args:
        allowance: What may be used.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._lock = threading.Lock()
        self._tokens = 0
        self._usd = 0.0

    @property
    def is_capped(self) -> bool:
        """Whether there is an end to it."""
        return self._allowance.cost_usd is not None or self._allowance.tokens is not None

    def refusal(self) -> str | None:
        """Return why no more calls are made; None = there is something left."""
        with self._lock:
            most_usd, most_tokens = self._allowance.cost_usd, self._allowance.tokens
            if most_usd is not None and self._usd >= most_usd:
                return f"{self._usd:.4f} of {most_usd:g} US dollars are spent"
            if most_tokens is not None and self._tokens >= most_tokens:
                return f"{self._tokens} of {most_tokens} tokens are used"
        return None

    def charge(self, tokens: Tokens, cost: Cost) -> None:
        """Take what a call used, or what it is guessed to have used."""
        with self._lock:
            self._tokens += tokens.total
            self._usd += cost.usd or 0.0
