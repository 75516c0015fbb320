"""Ledgers whose clock a test moves: in memory, and on a real Redis whose scripts read the time from a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import redis

from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.rates import Rates
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_rates import RedisRates

START_S = 1_800_000_000.0


class TimedRedis(redis.Redis):
    """A client whose scripts read the time from a key, which is the only difference to those in use."""

    def register_script(self, script: Any) -> Any:
        assert script.count("redis.call('TIME')") == 1
        return super().register_script(
            script.replace("redis.call('TIME')", "redis.call('MGET', 'test:s', 'test:us')")
        )


@dataclass
class TimedLedger:
    """A ledger, the rates of its fleet, and their clock."""

    client: Any = None  # a `TimedRedis`; None = in memory
    now: float = START_S
    ledger: Ledger = field(init=False)
    rates: Rates = field(init=False)

    def __post_init__(self) -> None:
        if self.client is None:
            memory = MemoryLedger(lambda: self.now)
            self.ledger, self.rates = memory, memory.rates
            return
        self.client.flushdb()
        connection = RedisConnection(self.client)
        self.ledger, self.rates = RedisLedger(connection), RedisRates(connection)
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        if self.client is not None:
            self.client.mset({"test:s": int(self.now), "test:us": round(self.now % 1 * 1_000_000)})
