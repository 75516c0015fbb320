"""The rates of models on Redis: each step is one Lua script, see `rates_scripts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.rates import MOST_CLOSED_S, Known, ModelCall, Turn, Use, use_by_bucket
from benchflow_client.ledger.rates_scripts import SCRIPTS
from benchflow_client.ledger.redis_codec import CLOSED_KEY, LIMITS_KEY, MS, RATES_KEY, decode_limit


class RedisRates:
    """The rates of a fleet, beside its ledger on one Redis database.

    Args:
        connection: Where it is.
    """

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self._scripts: dict[str, Any] = {
            name: connection.client.register_script(text) for name, text in SCRIPTS.items()
        }

    def known(self) -> Known:
        """Return the limits and who is closed."""
        flat, closed = self._run("KNOWN")
        limits = {bucket: decode_limit(text) for bucket, text in zip(flat[::2], flat[1::2], strict=True)}
        return Known(
            limits={bucket: limit for bucket, limit in limits.items() if limit.has_rate},
            closed={account: int(left) / MS for account, left in closed},
        )

    def take(self, call: ModelCall, *, within_s: float, is_kept: bool = False) -> Turn:
        """Ask whether a call may be made now."""
        wait_ms, cause, is_refused, kind = self._run(
            "TAKE", int(within_s * MS), call.tokens, int(is_kept), call.account, *call.buckets
        )
        return Turn(int(wait_ms) / MS, cause, bool(is_refused), kind or None)

    def leave(self, call: ModelCall, turn: Turn) -> None:
        """Give the time that is kept for a call to others."""
        if turn.kind is not None:
            count = 1 if turn.kind == "requests" else call.tokens
            self._run("LEAVE", count, turn.cause, turn.kind)

    def settle(self, buckets: Iterable[str], tokens: int) -> None:
        """Count the tokens that calls used beyond those that they were thought to."""
        self._run("SETTLE", tokens, *buckets)

    def close(self, account: str, seconds: float) -> None:
        """Let no call of an account start for so long."""
        self._run("CLOSE", account, int(min(seconds, MOST_CLOSED_S) * MS))

    def used(self) -> Mapping[str, Use]:
        """Return the use of the last minute by bucket."""
        return use_by_bucket((field, int(count)) for field, count in self._run("USED"))

    def _run(self, script: str, *args: object) -> Any:
        with self._connection.reachable():
            return self._scripts[script](keys=[LIMITS_KEY, RATES_KEY, CLOSED_KEY], args=list(args))
