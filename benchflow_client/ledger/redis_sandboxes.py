"""The records of sandboxes on Redis: one hash."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.sandboxes import SandboxRecord, by_age

_KEY = "bf:sandboxes"


class RedisSandboxBook:
    """Records in one Redis hash."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def write(self, record: SandboxRecord) -> None:
        """Write or replace a record."""
        with self._connection.reachable() as client:
            client.hset(_KEY, record.name, json.dumps(asdict(record), separators=(",", ":")))

    def erase(self, name: str) -> None:
        """Remove a record."""
        with self._connection.reachable() as client:
            client.hdel(_KEY, name)

    def read(self) -> Sequence[SandboxRecord]:
        """Return every record, oldest first."""
        with self._connection.reachable() as client:
            texts: list[Any] = client.hvals(_KEY)
        return by_age(SandboxRecord(**json.loads(text)) for text in texts)
