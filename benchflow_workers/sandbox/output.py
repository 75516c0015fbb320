"""Output of a command in bounded memory: the start and the end are kept, the middle is counted."""

from __future__ import annotations


class CappedOutput:
    """Collects a byte stream and keeps at most `limit_bytes` of it.

    Guarantees: everything is kept while it fits; after that the first half of
    the limit and the last half, with nothing put between them. Memory stays
    within about twice the limit however much is written.

    Args:
        limit_bytes: Most bytes that `kept` returns; 0 keeps nothing and counts.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._tail_limit = max(limit_bytes, 0) // 2
        self._head_limit = max(limit_bytes, 0) - self._tail_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._tail_limit:
            return
        self._tail += data[-self._tail_limit :]
        # Trimmed only now and then: each trim copies the tail.
        if len(self._tail) >= 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def kept(self) -> bytes:
        """Return the kept bytes, start first."""
        return bytes(self._head) + bytes(self._tail[-self._tail_limit :] if self._tail_limit else b"")
