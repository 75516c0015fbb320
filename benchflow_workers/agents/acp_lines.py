"""One JSON-RPC message a line over a program's streams; lines that are none are the agent's log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from benchflow_workers.agents.lines import Lines, read_object
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["LineTransport"]

REQUEST_LIMIT: Final = 64
"""Requests of an agent that may wait for their answers at once."""

_INTERNAL_ERROR: Final = -32603

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
        self._lines = Lines(process, noise)
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
        while (line := await self._lines.next()) is not None:
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


def _message(line: bytes) -> dict[str, Any] | None:
    """Return the message on a line; None = it is none."""
    value = read_object(line)
    if value is None:
        return None
    method, identity = value.get("method"), value.get("id")
    is_message = (isinstance(method, str) and method not in _OURS) or (method is None and _is_answer(value))
    has_usable_id = identity is None or (isinstance(identity, int | str) and not isinstance(identity, bool))
    return _with_error_object(value) if is_message and has_usable_id else None


def _with_error_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose error is an object: the connection's reader would end over any other, unheard."""
    error = value.get("error")
    if error is None or isinstance(error, Mapping):
        return value
    return {**value, "error": {"code": _INTERNAL_ERROR, "message": str(error)}}


def _is_answer(value: Mapping[str, Any]) -> bool:
    return "result" in value or "error" in value
