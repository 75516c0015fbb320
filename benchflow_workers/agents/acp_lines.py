"""One JSON-RPC message a line over a program's streams; lines that are none are the agent's log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["LineTransport"]

LINE_LIMIT_BYTES: Final = 64 << 20
"""A longer line is left out: results of tools of tens of MB on one line do occur."""

DEPTH_LIMIT: Final = 100
"""Messages nested deeper are none: nothing of the protocol is, and readers of trajectories must not break."""

REQUEST_LIMIT: Final = 64
"""Requests of an agent that may wait for their answers at once."""

_OURS: Final = frozenset({
    "initialize", "authenticate", "session/new", "session/load", "session/prompt", "session/cancel", "session/set_mode",
    "session/set_model", "session/set_config_option",
})  # fmt: skip
"""What only the worker asks: coming back, it is an echo."""


class LineTransport:
    """Moves messages to and from an agent.

    Args:
        process: The agent.
        noise: Takes every line that is no message.
    """

    def __init__(self, process: Process, noise: CappedOutput) -> None:
        self._process = process
        self._noise = noise
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that hold no line end
        self._skipped = 0  # bytes of a line that is too long, so far
        self._asked = asyncio.Semaphore(REQUEST_LIMIT)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            ConnectionError: The agent does not read any more.
        """
        line = json.dumps(message, separators=(",", ":")).encode()
        if not await self._process.write(line + b"\n"):
            raise ConnectionResetError("the agent closed its standard input")
        if "method" not in message:
            self._asked.release()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None = the agent will send no more.

        An agent that asks and does not read the answers is not listened to until it does.
        """
        while (line := await self._line()) is not None:
            message = _message(line)
            if message is None:
                self._noise.write(line + b"\n")
                continue
            if "method" in message and "id" in message:
                await self._asked.acquire()
            return message
        return None

    async def close(self) -> None:
        """Do nothing: whoever attached the program ends it."""

    async def _line(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end < 0:
                self._drop_what_is_too_long()
                part = await self._process.read()
                if not part:
                    return self._last()
                self._buffer += part
                continue
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if not self._skipped:
                return line
            self._noise.write(b"[a line of %d bytes was left out]\n" % (self._skipped + len(line)))
            self._skipped = 0

    def _drop_what_is_too_long(self) -> None:
        if len(self._buffer) > LINE_LIMIT_BYTES:
            self._skipped += len(self._buffer)
            self._buffer.clear()
        self._searched = len(self._buffer)

    def _last(self) -> bytes | None:
        """Return what came after the last line end, once."""
        line = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return line or None


def _message(line: bytes) -> dict[str, Any] | None:
    """Return the message on a line; None = it is none."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    method = value.get("method")
    is_message = (isinstance(method, str) and method not in _OURS) or (method is None and _is_answer(value))
    identity = value.get("id")
    has_usable_id = identity is None or (isinstance(identity, int | str) and not isinstance(identity, bool))
    return value if is_message and has_usable_id and _is_shallow(value, DEPTH_LIMIT) else None


def _is_answer(value: Mapping[str, Any]) -> bool:
    return "result" in value or "error" in value


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)
