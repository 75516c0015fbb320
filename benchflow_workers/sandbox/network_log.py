"""What a sandbox was refused: one record for each attempt, up to a bound."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

_MOST = 1000
"""Attempts that are kept: an agent that tries for hours fills no disk."""

_LONGEST = 2048
"""Characters kept of a host or URL."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One attempt that was refused.

    Attributes:
        host: Name or address that was asked for; "" = it named none.
        port: Port of the connection; 53 = the name itself was asked for.
        rule: Why; also in the header `X-BenchFlow-Blocked` of the answer.
        url: URL without its query, where a request was read; "" = none was.
    """

    host: str
    port: int
    rule: str
    url: str = ""


class EgressLog:
    """Refusals of one sandbox in their order; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[dict[str, Any]] = []
        self._left_out = 0

    def add(self, refusal: Refusal) -> bool:
        """Write down an attempt; returns False for one too many, which is only counted."""
        asked: dict[str, Any] = {"host": _short(refusal.host), "port": refusal.port}
        if refusal.url:
            asked = {"host": _short(refusal.host), "url": _short(refusal.url)}
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **asked, "rule": refusal.rule}
        with self._lock:
            is_kept = len(self._lines) < _MOST
            if is_kept:
                self._lines.append(line)
            else:
                self._left_out += 1
        return is_kept

    def take(self) -> tuple[dict[str, Any], ...]:
        """Return what was written since the last time, and forget it."""
        with self._lock:
            lines, self._lines = self._lines, []
            left_out, self._left_out = self._left_out, 0
        return (*lines, *([{"left_out": left_out}] if left_out else []))


@runtime_checkable
class KeepsRefusals(Protocol):
    """A sandbox that knows what its network refused."""

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what was refused since the last time, oldest first.

        Guarantees: at most 1,000 attempts, `{time, host, port or url, rule}` each; a last
        record `{left_out}` counts the others. Never raises, also when the sandbox is gone.
        """
        ...


def take_refusals(sandbox: object) -> tuple[dict[str, Any], ...]:
    """Return what a sandbox was refused since the last time; nothing where it keeps none."""
    return sandbox.take_refusals() if isinstance(sandbox, KeepsRefusals) else ()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
