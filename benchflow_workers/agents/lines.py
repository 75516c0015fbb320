"""What a program prints, line by line in bounded memory; JSON objects among it."""

from __future__ import annotations

import json
from typing import Any, Final

from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["JsonLines", "Lines", "PlainLines", "read_object"]

LINE_LIMIT_BYTES: Final = 64 << 20
"""A longer line is left out: results of tools of tens of MB on one line do occur."""

DEPTH_LIMIT: Final = 100
"""Objects nested deeper are none: no protocol's are, and readers of trajectories must not break."""


class Lines:
    """Splits the output of a program.

    Args:
        process: The program.
        noise: Takes word of lines that are left out.
    """

    def __init__(self, process: Process, noise: CappedOutput) -> None:
        self._process = process
        self._noise = noise
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer that hold no line end
        self._skipped = 0  # bytes of a line that is too long, so far

    async def next(self) -> bytes | None:
        """Return the next line without its end; None = there will be no more."""
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


class JsonLines:
    """The JSON objects among the lines of a program.

    Args:
        process: The program.
        noise: Takes every other line.
    """

    def __init__(self, process: Process, noise: CappedOutput) -> None:
        self._lines = Lines(process, noise)
        self._noise = noise

    async def next(self) -> dict[str, Any] | None:
        """Return the next object; None = there will be no more."""
        while (line := await self._lines.next()) is not None:
            value = read_object(line)
            if value is not None:
                return value
            self._noise.write(line + b"\n")
        return None


class PlainLines:
    """The lines of a program that prints text for people, as objects.

    Args:
        process: The program.
        log: Takes every line.
    """

    def __init__(self, process: Process, log: CappedOutput) -> None:
        self._lines = Lines(process, log)
        self._log = log

    async def next(self) -> dict[str, Any] | None:
        """Return the next line as `{"text": ...}`; None = there will be no more."""
        line = await self._lines.next()
        if line is None:
            return None
        self._log.write(line + b"\n")
        return {"text": line.decode("utf-8", "replace") + "\n"}


def read_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object on a line; None = there is none."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_shallow(value, DEPTH_LIMIT) else None


def _is_shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in inner)
