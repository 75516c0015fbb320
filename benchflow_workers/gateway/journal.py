"""What is recorded of calls, and their spans: written beside them by one thread, many at once.

To wake a thread for each call would cost more than its record: both would wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchflow_workers.gateway.call_spans import note_call
from benchflow_workers.gateway.calls import Call
from benchflow_workers.gateway.dialect import Document

__all__ = ["Journal"]

logger = logging.getLogger(__name__)

BATCH_S: Final = 0.05
"""How long a record may wait for others."""


class Journal:
    """Writes finished calls to the files of their grants, in the order in which they ended."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Call, Sequence[Document]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gateway-journal")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Call, answer: Sequence[Document]) -> None:
        """Have a finished call recorded soon; to be called on the gateway's event loop."""
        self._waiting.append((call, answer))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self._write_soon)

    async def written(self) -> None:
        """Wait until what was added is on disk, even where the agent left: else it would fill the memory."""
        writing = asyncio.wrap_future(self._start())
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({writing})

    def flush(self) -> None:
        """Return when everything that was added is on disk, or could not be written; from any thread."""
        wait([self._start()])
        while self._waiting:
            wait([self._start()])

    def close(self) -> None:
        """Write what waits and end the thread."""
        self.flush()
        self._thread.shutdown()

    def _write_soon(self) -> None:
        self._timer = None
        self._start()

    def _start(self) -> Future[None]:
        writing = self._thread.submit(self._write)
        writing.add_done_callback(_report)
        return writing

    def _write(self) -> None:
        """Write what waits, up to a call that cannot be told; the next turn goes on behind it."""
        lines: dict[Path, list[bytes]] = {}
        try:
            while self._waiting:
                call, answer = self._waiting.popleft()
                lines.setdefault(call.grant.file, []).append(call.line(answer))
                note_call(call, answer)
        finally:
            for file, parts in lines.items():
                _append(file, b"".join(parts))
            if self._waiting:
                self._thread.submit(self._write).add_done_callback(_report)


def _append(file: Path, data: bytes) -> None:
    try:
        with file.open("ab") as stream:
            stream.write(data)
    except OSError as error:
        logger.warning("calls to a model were not recorded: %s", error, extra={"action": "call_not_recorded"})


def _report(written: Future[None]) -> None:
    """Say in the log what kept a call from being recorded, whatever an odd answer did."""
    if not written.cancelled() and (error := written.exception()) is not None:
        logger.error(
            "a call to a model was not recorded", exc_info=error, extra={"action": "call_not_recorded"}
        )
