"""The rates of models in one process's memory: the twin of those on Redis."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from benchflow_client.ledger.admission import Limit
from benchflow_client.ledger.rates import (
    CLOSED,
    KINDS,
    MOST_CLOSED_S,
    Kind,
    Known,
    ModelCall,
    Turn,
    Use,
    pace,
    use_by_bucket,
)

_SLOT_MS, _SLOTS = 5_000, 12
_MS = 1_000


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a call takes of one bucket."""

    field: tuple[str, Kind]
    count: int
    used: float  # ms
    line: float  # ms
    ms: float


class MemoryRates:
    """The rates of a fleet that is one process.

    Args:
        limits: Those of its ledger; changed by it.
        clock: Returns seconds since the epoch.
    """

    def __init__(self, limits: Mapping[str, Limit], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._used: dict[tuple[str, Kind], float] = {}
        self._kept: dict[tuple[str, Kind], float] = {}
        self._closed: dict[str, float] = {}
        self._counts: dict[int, Counter[str]] = {}

    def known(self) -> Known:
        """Return the limits and who is closed."""
        with self._lock:
            now = self._now()
            left = {account: (until - now) / _MS for account, until in self._closed.items() if until > now}
            limits = {bucket: limit for bucket, limit in self._limits.items() if limit.has_rate}
            return Known(limits, left)

    def take(self, call: ModelCall, *, within_s: float, is_kept: bool = False) -> Turn:
        """Ask whether a call may be made now."""
        with self._lock:
            now = self._now()
            start, cause, last = float(now), "", None
            if (closed := self._closed.get(call.account, 0)) > start:
                start, cause = closed, CLOSED
            taken = []
            for one, ahead in self._taken(call, is_kept=is_kept):
                taken.append(one)
                if one.line - ahead > start:
                    start, cause, last = one.line - ahead, one.field[0], one
            if start > now:
                wait_ms = math.ceil(start - now)
                if wait_ms > int(within_s * _MS):
                    return Turn(wait_ms / _MS, cause, is_refused=True)
                if last is None or is_kept:
                    return Turn(wait_ms / _MS, cause)
                self._kept[last.field] = last.line + last.ms
                return Turn(wait_ms / _MS, cause, kind=last.field[1])
            for one in taken:
                self._used[one.field] = max(one.used, now) + one.ms
                self._note(one.field, one.count, now)
            return Turn()

    def leave(self, call: ModelCall, turn: Turn) -> None:
        """Give the time that is kept for a call to others."""
        if turn.kind is None:
            return
        with self._lock:
            found = pace(self._limits.get(turn.cause, Limit()), turn.kind)
            at, count = (turn.cause, turn.kind), 1 if turn.kind == "requests" else call.tokens
            if found is not None and at in self._kept:
                self._kept[at] -= count * found[0]

    def settle(self, buckets: Iterable[str], tokens: int) -> None:
        """Count the tokens that calls used beyond those that they were thought to."""
        with self._lock:
            now = self._now()
            for bucket in buckets:
                found, at = pace(self._limits.get(bucket, Limit()), "tokens"), (bucket, KINDS[1])
                if found is None or at not in self._used:
                    continue
                for table in (self._used, self._kept):
                    if table.get(at, 0) > 0:
                        table[at] = max(table[at], now if tokens > 0 else 0) + tokens * found[0]
                self._note(at, tokens, now)

    def close(self, account: str, seconds: float) -> None:
        """Let no call of an account start for so long."""
        with self._lock:
            until = self._now() + int(min(seconds, MOST_CLOSED_S) * _MS)
            self._closed[account] = max(self._closed.get(account, 0), until)

    def used(self) -> Mapping[str, Use]:
        """Return the use of the last minute by bucket."""
        with self._lock:
            slot, sums = self._now() // _SLOT_MS, Counter[str]()
            for back in range(_SLOTS):
                sums.update(self._counts.get(slot - back, {}))
            return use_by_bucket((field, max(0, count)) for field, count in sums.items())

    def free_at(self, bucket: str, limit: Limit) -> float:
        """Return the moment from which a call may start, in seconds since the epoch; 0 = any."""
        with self._lock:
            moments = [0.0]
            for kind in KINDS:
                if (found := pace(limit, kind)) is not None:
                    moments.append((self._line((bucket, kind)) - found[1]) / _MS)
            return max(moments)

    def forget(self, bucket: str) -> None:
        """Begin anew with a bucket."""
        with self._lock:
            for kind in KINDS:
                self._used.pop((bucket, kind), None)
                self._kept.pop((bucket, kind), None)

    def _taken(self, call: ModelCall, *, is_kept: bool) -> Iterable[tuple[_Taken, float]]:
        for bucket in call.buckets:
            for kind in KINDS:
                if (found := pace(self._limits.get(bucket, Limit()), kind)) is None:
                    continue
                interval, ahead = found
                at, count = (bucket, kind), 1 if kind == "requests" else call.tokens
                used = self._used.get(at, 0)
                line = used if is_kept else self._line(at)
                yield _Taken(at, count, used, line, count * interval), ahead

    def _line(self, at: tuple[str, Kind]) -> float:
        return max(self._used.get(at, 0), self._kept.get(at, 0))

    def _note(self, at: tuple[str, Kind], count: int, now: int) -> None:
        if count == 0:
            return
        slot = now // _SLOT_MS
        self._counts.setdefault(slot, Counter())["|".join(at)] += count
        for old in [known for known in self._counts if known <= slot - _SLOTS]:
            del self._counts[old]

    def _now(self) -> int:
        return math.floor(self._clock() * _MS)
