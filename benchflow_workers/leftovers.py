"""Removes from the broker what dead workers had taken and never acknowledged.

A worker's messages stand in the broker until they are acknowledged; those of a killed worker
would stay there for the visibility timeout, a week. The reconciler publishes their trials anew, so
here they are only in the way: they make the broker grow, and look like work in progress. The one
place, with `broker`, that knows how kombu keeps messages in Redis.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kombu.transport.redis import Channel

from benchflow_client.broker import SUMMARY, TRIAL
from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.connection import RedisConnection

GRACE_S = 30.0
"""A delivery whose trial nobody held for so long, in look after look, is a leftover."""

_BATCH = 500
"""Deliveries read or removed in one step; each is some 2 kB."""

_TAKEN: Final[str] = Channel.unacked_key
"""Hash of what was taken and not acknowledged: delivery tag -> message."""

_TAKEN_AT: Final[str] = Channel.unacked_index_key
"""Sorted set of the same tags, by when each was taken on its worker's clock."""


@dataclass(frozen=True, slots=True)
class _Delivery:
    """What a message that was taken is about; a summary has no index."""

    job: str
    index: int | None


class Leftovers:
    """Sweeps the broker again and again; made once per process, for the reconciler.

    A message is a wake-up and may be lost: whoever acknowledges or returns one that was
    swept meanwhile meets no error, and a trial whose message is gone is published anew
    from the ledger.

    Args:
        connection: The broker's Redis; None = the broker is none and gives back by itself
            what a dead worker held.
        ledger: Knows which trials are leased.
        grace_s: Seconds a trial of an open job must be without a lease.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        connection: RedisConnection | None,
        ledger: Ledger,
        *,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._grace_s = grace_s
        self._clock = clock
        self._known: dict[str, _Delivery | None] = {}
        self._idle_since: dict[str, float] = {}
        self._swept_at = float("-inf")

    def sweep(self) -> int:
        """Remove the deliveries that no living worker can need and return how many.

        Those of closed and forgotten jobs go at once. One of an open job goes when its trial
        was leased at no look for a whole grace: finished, or of a dead worker and published
        anew. A summary goes after the grace too; the reconciler gathers by itself.

        Guarantees: the delivery of a running trial stays; messages of others stay; two
        sweeps at once, here or elsewhere, do no harm.

        Raises:
            BrokerError: The broker or the ledger does not answer.
        """
        if self._connection is None:
            return 0
        now = self._clock()
        if now - self._swept_at > self._grace_s:
            # Somebody else swept meanwhile; what was idle then may have been leased since.
            self._idle_since.clear()
        self._swept_at = now
        self._learn(self._connection)
        return sum(self._remove(self._connection, tags) for tags in _batches(self._leftovers(now)))

    def _learn(self, connection: RedisConnection) -> None:
        """Read what was taken since the last look and forget what is gone."""
        with connection.reachable() as client:
            tags = {tag for tag, _ in client.zscan_iter(_TAKEN_AT, count=_BATCH)}
            for batch in _batches(sorted(tags - self._known.keys())):
                found = zip(batch, client.hmget(_TAKEN, batch), strict=True)
                self._known.update((tag, _delivery(text)) for tag, text in found if text is not None)
        self._known = {tag: found for tag, found in self._known.items() if tag in tags}
        self._idle_since = {tag: since for tag, since in self._idle_since.items() if tag in tags}

    def _leftovers(self, now: float) -> list[str]:
        """Return the tags to remove; the jobs are read after the tags, so none is too new to be known."""
        deliveries = {tag: found for tag, found in self._known.items() if found is not None}
        if not deliveries:
            return []
        open_jobs = frozenset(self._ledger.open_jobs())
        concerned = {delivery.job for delivery in deliveries.values()} & open_jobs
        leased = {_Delivery(job, trial.index) for job in concerned for trial in self._ledger.running(job)}
        return [
            tag
            for tag, delivery in deliveries.items()
            if delivery.job not in open_jobs or self._is_idle(tag, now, is_leased=delivery in leased)
        ]

    def _is_idle(self, tag: str, now: float, *, is_leased: bool) -> bool:
        if is_leased:
            self._idle_since.pop(tag, None)
            return False
        return now - self._idle_since.setdefault(tag, now) >= self._grace_s

    def _remove(self, connection: RedisConnection, tags: Sequence[str]) -> int:
        with connection.reachable() as client, client.pipeline(transaction=True) as pipe:
            pipe.zrem(_TAKEN_AT, *tags)
            pipe.hdel(_TAKEN, *tags)
            return int(pipe.execute()[1])


def _delivery(text: str) -> _Delivery | None:
    """Return what a stored delivery is about; None = it is none of ours."""
    try:
        message, *_ = json.loads(text)
        task = message["headers"]["task"]
        (first, second, *_), *_ = json.loads(base64.b64decode(message["body"]))
    except (ValueError, TypeError, KeyError):
        return None
    if task == TRIAL and isinstance(first, str) and isinstance(second, int):
        return _Delivery(first, second)
    job = second if task == SUMMARY else None
    return _Delivery(job, None) if isinstance(job, str) else None


def _batches(tags: Sequence[str]) -> Iterator[Sequence[str]]:
    rest = iter(tags)
    while batch := list(islice(rest, _BATCH)):
        yield batch
