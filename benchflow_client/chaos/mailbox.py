"""One job's messages in a Redis broker: found, copied, lost. Messages of other jobs are never written.

Knows how kombu keeps messages: a list per queue and priority, and one hash of those taken
and not acknowledged.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kombu.transport.redis import Channel

from benchflow_client.addresses import REDIS, broker_kind
from benchflow_client.broker import CONTROL_QUEUE
from benchflow_client.errors import UsageError
from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.schema.plan import Plan

_UNACKED: Final[str] = Channel.unacked_key
_SEPARATOR: Final[str] = Channel.sep
_PRIORITIES: Final[tuple[int, ...]] = (3, 6, 9)
"""Steps below the first, which has the queue's own name."""

CHORD_PREFIX: Final = "celery-taskset-meta-"
"""Beginning of the keys in which the result backend counts a chord."""


class Mailbox:
    """The messages and chord of one job.

    Every method raises `BrokerError` when the broker cannot be reached.

    Args:
        broker: Where the messages are.
        ledger: Where the chord is counted; often the same Redis.
        header: The job, as the ledger has it.
        plan: The job's plan.
    """

    def __init__(
        self, broker: RedisConnection, ledger: RedisConnection, header: JobHeader, plan: Plan
    ) -> None:
        self._connection = broker
        self._ledger = ledger
        self._header = header
        self._ids = frozenset({header.body_id, *(plan.trial(index).id for index in range(plan.size))})

    @property
    def queues(self) -> tuple[str, ...]:
        """Return the lists in which a message of the job may wait."""
        names = (self._header.queue, CONTROL_QUEUE)
        return tuple(
            name + suffix
            for name in names
            for suffix in ("", *(f"{_SEPARATOR}{step}" for step in _PRIORITIES))
        )

    def left(self) -> tuple[str, ...]:
        """Return `id (where)` of every message of the job, waiting or taken."""
        waiting = [f"{_id(message)} (in {queue!r})" for queue, _, message in self._waiting()]
        return (*waiting, *(f"{_id(message)} (not acknowledged)" for message in self._taken()))

    def copy_all(self, times: int) -> int:
        """Deliver every message of the job again, waiting or taken; returns how many were added."""
        found = [(queue, message) for queue, _, message in self._waiting()]
        found += [(self._queue_of(message), message) for message in self._taken()]
        with self._connection.reachable() as client:
            for queue, message in found:
                client.lpush(queue, *(_retagged(message) for _ in range(times)))
        return len(found) * times

    def lose_one(self) -> str:
        """Remove a waiting message for good; returns its id, empty = none waits."""
        for queue, text, message in self._waiting():
            with self._connection.reachable() as client:
                if client.lrem(queue, 1, text):
                    return _id(message)
        return ""

    def lose_chord(self) -> int:
        """Delete what the result backend counted of the job; returns how many keys there were."""
        with self._ledger.reachable() as client:
            keys = list(client.scan_iter(f"{CHORD_PREFIX}{self._header.group_id}*", count=1000))
            return int(client.delete(*keys)) if keys else 0

    def reset_connections(self) -> int:
        """Close the connections of every client of the broker's database, and return how many.

        This one touches others: every worker and client of the database has to connect anew.
        """
        with self._connection.reachable() as client:
            mine = client.client_id()
            database = str(client.client_info().get("db"))
            victims = [
                other["id"]
                for other in client.client_list()
                if str(other.get("db")) == database and int(other["id"]) != int(mine)
            ]
            return sum(int(client.client_kill_filter(_id=victim, skipme=True)) for victim in victims)

    def _waiting(self) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        for queue in self.queues:
            with self._connection.reachable() as client:
                texts: list[str] = client.lrange(queue, 0, -1)
            for text in texts:
                if _id(message := _read(text)) in self._ids:
                    yield queue, text, message

    def _taken(self) -> Iterator[Mapping[str, Any]]:
        with self._connection.reachable() as client:
            texts: list[str] = client.hvals(_UNACKED)
        for text in texts:
            message, *_ = _read(text) or ({},)
            if _id(message) in self._ids:
                yield message

    def _queue_of(self, message: Mapping[str, Any]) -> str:
        return CONTROL_QUEUE if _id(message) == self._header.body_id else self._header.queue


def check_broker(url: str) -> None:
    """Refuse a broker whose messages cannot be looked at.

    Raises:
        UsageError: It is no Redis.
    """
    if (kind := broker_kind(url)) != REDIS:
        raise UsageError(
            f"`bench chaos` looks into the broker's queues, and it cannot look into a {kind}.",
            hint="Run it on a fleet whose broker is a Redis or Valkey.",
        )


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # somebody else's
        return {}


def _id(message: object) -> str:
    headers = message.get("headers") if isinstance(message, Mapping) else None
    return str(headers.get("id", "")) if isinstance(headers, Mapping) else ""


def _retagged(message: Mapping[str, Any]) -> str:
    """Return a copy of a message as the broker would deliver it once more."""
    properties = {**message["properties"], "delivery_tag": str(uuid.uuid4())}
    return json.dumps({**message, "properties": properties})
