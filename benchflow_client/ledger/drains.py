"""Requests that a worker stops: left by a person, found by the worker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from benchflow_client.ledger.connection import RedisConnection

_KEY = "bf:drain:"
_KEPT_S = 3600
"""A worker looks every few seconds; one that is gone leaves no request for its successor."""


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """Who wants a worker to stop, and why."""

    by: str
    reason: str

    @property
    def text(self) -> str:
        """Return the request for people."""
        return f"{self.by}: {self.reason}" if self.reason else self.by


class DrainRequests:
    """The requests of a fleet; every method raises `BrokerError` when unreachable."""

    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def leave(self, worker: str, request: DrainRequest) -> None:
        """Ask a worker to stop."""
        with self._connection.reachable() as client:
            client.set(_KEY + worker, json.dumps(asdict(request)), ex=_KEPT_S)

    def find(self, worker: str) -> DrainRequest | None:
        """Return the request for a worker; None = nobody asked."""
        with self._connection.reachable() as client:
            text = client.get(_KEY + worker)
        return None if text is None else DrainRequest(**json.loads(text))
