"""How often models may be asked over the whole fleet: what calls take of limits, and who is closed.

The limits are those of `admission.Limit` with a rate of a minute. A call asks before it is made
and is told to go, which counts it in all its buckets at once, or to come back at a time that is
kept for it. So calls start evenly, in the order in which they came, whatever their worker.

Guarantees: no more requests start in any 60 seconds than a limit says. Tokens are known when a call
has ended; until then an estimate counts, and what is known to be unused goes to those that wait. So
tokens stay below the limit on the average of minutes, but for the last call that started. After a
pause a second's worth may start together, at least one call.

The pace of a bucket is the generic cell rate algorithm (ITU-T I.371): a request or a token takes
so many milliseconds, and the moment up to which they are used up may be a little ahead of now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from benchflow_client.ledger.admission import Limit

__all__ = [
    "CLOSED", "KINDS", "MOST_CLOSED_S", "Kind", "Known", "ModelCall", "Rates", "Turn", "Use", "pace", "use_by_bucket",
]  # fmt: skip

CLOSED: Final = "closed"
"""What a call waits for whose provider asked everybody to wait."""

MOST_CLOSED_S: Final = 60.0
"""A provider that asks for longer is asked once a minute whether it still does."""

MINUTE_MS: Final = 60_000

Kind = Literal["requests", "tokens"]

KINDS: Final[tuple[Kind, ...]] = ("requests", "tokens")
"""What a limit of a minute counts."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call before it is made."""

    buckets: tuple[str, ...]  # what it counts in
    account: str  # provider and key: its calls are closed together
    tokens: int  # about as many as it will use; 0 = they are counted already


@dataclass(frozen=True, slots=True)
class Turn:
    """Answer to a call."""

    wait_s: float = 0.0  # 0 = it goes, and is counted
    cause: str = ""  # bucket that it waits for, or `CLOSED`; empty = it goes
    is_refused: bool = False  # it would have to wait longer than it can: no time is kept for it
    kind: Kind | None = field(default=None, compare=False)  # of what a time is kept for it; None = none is

    @property
    def is_kept(self) -> bool:
        """Whether a time is kept for it, at which it goes before those that came later."""
        return bool(self.cause) and self.cause != CLOSED and not self.is_refused


@dataclass(frozen=True, slots=True)
class Known:
    """What a worker keeps for a moment, so that calls without a limit need ask nobody."""

    limits: Mapping[str, Limit] = field(default_factory=dict)  # those with a rate of a minute, by bucket
    closed: Mapping[str, float] = field(default_factory=dict)  # account -> seconds from now


@dataclass(frozen=True, slots=True)
class Use:
    """What a bucket used in the last minute."""

    requests: int = 0
    tokens: int = 0


class Rates(Protocol):
    """The rates of a fleet, on the ledger's clock; every method raises `BrokerError` when unreachable."""

    def known(self) -> Known:
        """Return the limits and who is closed."""
        ...

    def take(self, call: ModelCall, *, within_s: float, is_kept: bool = False) -> Turn:
        """Ask whether a call may be made now; atomic over all its buckets.

        Args:
            call: The call.
            within_s: Seconds that it can wait.
            is_kept: It comes back at the time that was kept for it, and need not stand behind
                those whose time comes later.
        """
        ...

    def leave(self, call: ModelCall, turn: Turn) -> None:
        """Give the time that is kept for a call to others: it is not made after all.

        Args:
            call: The call.
            turn: The first answer to it by which a time was kept; of another one nothing is given.
        """
        ...

    def settle(self, buckets: Iterable[str], tokens: int) -> None:
        """Count the tokens that calls used beyond those that they were thought to; fewer than 0 = they used less."""
        ...

    def close(self, account: str, seconds: float) -> None:
        """Let no call of an account start for so long, at most `MOST_CLOSED_S`; it is never shortened."""
        ...

    def used(self) -> Mapping[str, Use]:
        """Return the use of the last minute by bucket, to five seconds; buckets without a rate have none."""
        ...


def use_by_bucket(counts: Iterable[tuple[str, int]]) -> Mapping[str, Use]:
    """Return counts under `bucket|kind` as the use of each bucket."""
    found: dict[str, Use] = {}
    for name, count in counts:
        bucket, _, kind = name.rpartition("|")
        found[bucket] = replace(found.get(bucket, Use()), **{kind: count})
    return found


def pace(limit: Limit, kind: Kind) -> tuple[float, float] | None:
    """Return the milliseconds that one takes and how far ahead of now they may be used; None = no limit.

    The burst is taken off the rate: it and a minute at the rate are together the limit.
    """
    most = limit.requests_per_min if kind == "requests" else limit.tokens_per_min
    if most is None:
        return None
    burst = float(math.floor(most / 60))
    ahead = max(0.0, burst - 1) if kind == "requests" else burst
    interval = MINUTE_MS / (most - ahead)
    return interval, ahead * interval
