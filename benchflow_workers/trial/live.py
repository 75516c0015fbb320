"""The trajectory of an agent that is at work: in the store every few seconds, so that a dead worker's is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchflow_client.errors import StoreError
from benchflow_client.store.base import Store
from benchflow_client.store.documents import json_lines
from benchflow_workers.agents.base import LiveEvents
from benchflow_workers.trial.redact import Redactor

__all__ = ["TRAJECTORY", "LiveTrajectory"]

TRAJECTORY: Final = "trajectory/acp_trajectory.jsonl"
"""File of an attempt that the trajectory is kept in, while the agent works and after it."""

INTERVAL_S: Final = 5.0
"""Between two looks for something new."""

_SHARE: Final = 20
"""Writing takes at most this part of the time: a long trajectory is written less often."""

logger = logging.getLogger(__name__)


class LiveTrajectory:
    """Keeps what an agent does, as long as it does it; whole at every moment, since documents are replaced.

    Args:
        store: Where to.
        prefix: Of the attempt's documents.
        secrets: Values that are masked before anything is written.
        interval_s: Seconds between two looks.
    """

    def __init__(
        self, store: Store, prefix: str, secrets: frozenset[str], *, interval_s: float = INTERVAL_S
    ) -> None:
        self._store, self._key = store, prefix + TRAJECTORY
        self._secrets, self._interval_s = secrets, interval_s
        self._before: list[Mapping[str, Any]] = []  # of turns that have ended

    def hide(self, secrets: frozenset[str]) -> None:
        """Mask these values too, from now on."""
        self._secrets |= secrets

    @asynccontextmanager
    async def follow(self, source: LiveEvents) -> AsyncGenerator[None, None]:
        """Keep a turn's events for as long as the block runs; what cannot be kept is said in the log."""
        writing = asyncio.ensure_future(self._write_on(source))
        try:
            yield
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
            self._before.extend(source.events())

    async def _write_on(self, source: LiveEvents) -> None:
        seen, wait_s = 0, self._interval_s
        while True:
            await asyncio.sleep(wait_s)
            if source.n_changes == seen:
                continue
            seen, started = source.n_changes, time.monotonic()
            try:
                await asyncio.to_thread(self._write, [*self._before, *source.events()])
            except StoreError as error:
                logger.info("trajectory not kept: %s", error, extra={"action": "trajectory_not_kept"})
            wait_s = max(self._interval_s, _SHARE * (time.monotonic() - started))

    def _write(self, events: Sequence[Mapping[str, Any]]) -> None:
        self._store.put(self._key, Redactor(self._secrets).bytes(json_lines(events)))
