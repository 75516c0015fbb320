"""Which sandboxes exist or may exist: written before one is made, removed after it is gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


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
        return by_age(self._records.values())


def by_age(records: Iterable[SandboxRecord]) -> Sequence[SandboxRecord]:
    """Return records oldest first."""
    return sorted(records, key=lambda record: (record.created_at, record.name))
