"""Looks for a secret where none may stand: in the broker, the events, the store, and log files."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchflow_client.errors import BrokerError, StoreError
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.store.base import Store

SHORTEST_SECRET = 8
"""Characters a secret needs for its absence to say something."""

_CHUNK_BYTES = 1 << 20
_EVENTS = "*celeryev*"
"""Channels on which workers announce what they do."""


class Needle:
    """A secret in every form in which it may travel.

    Args:
        secret: At least `SHORTEST_SECRET` characters.
    """

    def __init__(self, secret: str) -> None:
        raw = secret.encode("utf-8", "surrogateescape")
        quoted = json.dumps(secret)[1:-1].encode()
        self._forms = frozenset({raw, quoted, *_base64_forms(raw)})
        self.longest_bytes = max(map(len, self._forms))

    def is_in(self, data: bytes) -> bool:
        """Return whether any form of the secret stands in some bytes."""
        return any(form in data for form in self._forms)


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yield what base64 makes of the secret in the middle of a text, at each of three alignments."""
    for offset in range(3):
        encoded = base64.b64encode(b"\0" * offset + raw)
        end = (offset + len(raw)) * 8 // 6
        yield encoded[(offset * 8 + 5) // 6 : end]


class EventListener:
    """Listens to the fleet's events for a secret, from entering to leaving.

    Args:
        connection: The broker.
        needle: What is looked for.
    """

    def __init__(self, connection: RedisConnection, needle: Needle) -> None:
        self._connection = connection
        self._needle = needle
        self._pubsub: Any = None
        self.heard = 0
        self.found = 0

    def __enter__(self) -> Self:
        self._subscribe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        if self._pubsub is not None:
            self._pubsub.close()

    def hear(self) -> None:
        """Take what was said since the last call; a lost connection is made anew."""
        if self._pubsub is None:
            self._subscribe()
        try:
            with self._connection.reachable():
                while self._pubsub is not None and (message := self._pubsub.get_message()) is not None:
                    if message["type"] == "pmessage":
                        self.heard += 1
                        self.found += self._needle.is_in(_bytes(message["data"]))
        except BrokerError:
            self._pubsub = None

    def _subscribe(self) -> None:
        try:
            with self._connection.reachable() as client:
                pubsub = client.pubsub()
                pubsub.psubscribe(_EVENTS)
                self._pubsub = pubsub
        except BrokerError:
            self._pubsub = None


def search_redis(connection: RedisConnection, needle: Needle, keys: Iterable[str]) -> Iterator[str]:
    """Yield the keys, of those that match the patterns, under which the secret stands.

    Raises:
        BrokerError: The broker does not answer.
    """
    with connection.reachable() as client:
        readers: dict[str, Any] = {
            "string": client.get,
            "hash": client.hgetall,
            "list": lambda key: client.lrange(key, 0, -1),
            "set": client.smembers,
            "zset": lambda key: client.zrange(key, 0, -1),
        }
        for pattern in keys:
            for key in client.scan_iter(pattern, count=1000):
                # A key may be gone since it was listed; then its type is "none".
                reader = readers.get(client.type(key))
                if reader is not None and needle.is_in(_bytes(repr(reader(key)))):
                    yield f"key {key}"


def search_store(store: Store, needle: Needle, prefix: str) -> Iterator[str]:
    """Yield the documents below a prefix in which the secret stands.

    Raises:
        StoreError: A document cannot be read.
    """
    for key in store.list(prefix):
        if needle.is_in(store.get(key)):
            yield f"document {key}"


def search_files(files: Iterable[Path], needle: Needle) -> Iterator[str]:
    """Yield the files in which the secret stands.

    Raises:
        StoreError: A file cannot be read.
    """
    for path in files:
        try:
            if _is_in_file(path, needle):
                yield f"file {path}"
        except OSError as error:
            raise StoreError(
                f"The log {str(path)!r} cannot be read: {error.strerror}.", hint="Give a file you may read."
            ) from error


def _is_in_file(path: Path, needle: Needle) -> bool:
    tail = b""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if needle.is_in(tail + chunk):
                return True
            tail = chunk[-needle.longest_bytes :]
    return False


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
