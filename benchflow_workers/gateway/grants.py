"""What the holder of a token may do, and what it did: one grant for each turn of an agent."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.gateway.dialect import Tokens
from benchflow_workers.gateway.prices import Cost
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.target import Capture, Target
from benchflow_workers.telemetry.base import CURRENT, Span

__all__ = ["Grant", "Grants", "Masks"]

TOKEN_PREFIX = "bf-"

CALLS_AT_ONCE: Final = 64
CAPPED_AT_ONCE: Final = 4
"""Where there is a cap: what is under way is not counted yet, so so many calls may go beyond it."""

LARGE_AT_ONCE: Final = 4
"""Of those with a large body, which a worker's memory holds."""

LONGEST_WAIT_S: Final = 3600.0
"""A provider that asks for longer is asked again after an hour."""

RECORDED_BYTES: Final = 256 << 20
"""Bytes of calls that are kept whole in one turn; of later ones only the numbers are."""


class Masks(Protocol):
    """What keeps secrets out of records."""

    def value(self, value: Any) -> Any:
        """Return a JSON value with every secret in it masked."""
        ...

    def bytes(self, data: bytes) -> bytes:
        """Return bytes with every secret in them masked."""
        ...


@dataclass
class Grant:
    """A token and what it is good for; safe to use from any thread.

    Attributes:
        token: What the agent has in the place of a key.
        target: Where its calls go.
        purse: What it may use, together with other turns of its attempt.
        file: Where calls are recorded, one JSON object a line.
        redactor: Masks secrets before anything is written.
        span: What its calls belong to.
        is_web_open: Its model may be given tools that reach the internet.
        slots: One for each call under way.
        large_slots: One more for each with a large body, until it is recorded.
        capture: What is asked beside what the agent asks; less once a server refused it.
        recorded_bytes: How much is recorded; counted by the one thread that writes.
    """

    target: Target
    purse: Purse
    file: Path
    redactor: Masks
    span: Span = field(default_factory=CURRENT.get, repr=False)
    is_web_open: bool = True
    token: str = field(default_factory=lambda: TOKEN_PREFIX + secrets.token_urlsafe(24), repr=False)
    slots: asyncio.Semaphore = field(init=False, repr=False)
    large_slots: asyncio.Semaphore = field(init=False, repr=False)
    capture: Capture = field(init=False)
    recorded_bytes: int = 0
    _lock: threading.Condition = field(default_factory=threading.Condition, repr=False)
    _under_way: int = 0
    _calls: int = 0
    _known: int = 0  # calls whose tokens are known
    _priced: int = 0
    _input: int = 0
    _output: int = 0
    _cost: float = 0.0
    _wait_s: float | None = None
    _statuses: Counter[int] = field(default_factory=Counter)
    _turned_away: str = ""

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(CAPPED_AT_ONCE if self.purse.is_capped else CALLS_AT_ONCE)
        self.large_slots = asyncio.Semaphore(LARGE_AT_ONCE)
        self.capture = self.target.capture

    @contextmanager
    def call(self) -> Generator[None, None, None]:
        """Count a call as under way for as long as the block runs."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._lock.notify_all()

    def wait_until_quiet(self, timeout_s: float) -> bool:
        """Wait until no call is under way; False = one still was at the end of the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._under_way == 0, timeout_s)

    def asked_to_wait(self, seconds: float) -> None:
        """Note what a provider asked for that turned a call away."""
        with self._lock:
            self._wait_s = min(seconds, LONGEST_WAIT_S)

    @property
    def wait_s(self) -> float | None:
        """The seconds a provider asked to wait last; None = it did not."""
        with self._lock:
            return self._wait_s

    def turn_away(self, why: str) -> None:
        """Note a call that was not passed on."""
        with self._lock:
            self._turned_away = why

    @property
    def turned_away(self) -> str:
        """Why the last call that was not passed on was not; empty = there was none."""
        with self._lock:
            return self._turned_away

    def settle(self, status: int, tokens: Tokens | None, cost: Cost) -> None:
        """Count a call that ended; an answer that told no tokens leaves the sums unknown."""
        with self._lock:
            self._statuses[status] += 1
            if status >= 400:
                return
            self._calls += 1
            if tokens is not None:
                self._known += 1
                self._input += tokens.input
                self._output += tokens.output
            if cost.usd is not None:
                self._priced += 1
                self._cost += cost.usd

    @property
    def statuses(self) -> Mapping[int, int]:
        """Status of a call -> how many ended with it."""
        with self._lock:
            return dict(self._statuses)

    def usage(self) -> AgentUsage:
        """Return what was used; a sum of which a part is unknown is unknown."""
        with self._lock:
            calls = self._calls + self._under_way
            is_known, is_priced = self._known == calls, self._priced == calls
            return AgentUsage(
                n_input_tokens=self._input if is_known else None,
                n_output_tokens=self._output if is_known else None,
                total_tokens=self._input + self._output if is_known else None,
                cost_usd=round(self._cost, 8) if is_priced else None,
                usage_source="provider_response",
            )


class Grants:
    """The tokens that are good now."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def add(self, grant: Grant) -> None:
        """Make a token good."""
        self._grants[grant.token] = grant

    def withdraw(self, grant: Grant) -> None:
        """Make a token good for nothing; safe to call twice."""
        self._grants.pop(grant.token, None)

    def find(self, token: str) -> Grant | None:
        """Return the grant of a token."""
        return self._grants.get(token)
