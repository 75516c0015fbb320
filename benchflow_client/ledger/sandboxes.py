"""Which sandboxes exist or may exist: written before one is made, removed after it is gone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from benchflow_client.ledger.connection import RedisConnection

_KEY = "bf:sandboxes"


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """A sandbox that was begun; `id` is empty until the provider gave it one."""

    name: str  # unique per attempt
    kind: str
    place: str  # where the provider keeps it: a daemon, a host, an account
    id: str
    job: str
    index: int
    fence: int
    worker: str
    created_at: float  # seconds since the epoch


class SandboxBook(Protocol):
    """The records of a fleet's sandboxes; every method raises `BrokerError` when unreachable."""

    def write(self, record: SandboxRecord) -> None:
        """Write or replace a record, found again by its name."""
        ...

    def erase(self, name: str) -> None:
        """Remove a record; none there is fine."""
        ...

    def read(self) -> Sequence[SandboxRecord]:
        """Return every record, oldest first."""
        ...


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
        return _by_age([SandboxRecord(**json.loads(text)) for text in texts])


class MemorySandboxBook:
    """Records in this process's memory."""

    def __init__(self) -> None:
        self._records: dict[str, SandboxRecord] = {}

    def write(self, record: SandboxRecord) -> None:
        """Write or replace a record."""
        self._records[record.name] = record

    def erase(self, name: str) -> None:
        """Remove a record."""
        self._records.pop(name, None)

    def read(self) -> Sequence[SandboxRecord]:
        """Return every record, oldest first."""
        return _by_age([*self._records.values()])


def _by_age(records: list[SandboxRecord]) -> Sequence[SandboxRecord]:
    return sorted(records, key=lambda record: (record.created_at, record.name))
