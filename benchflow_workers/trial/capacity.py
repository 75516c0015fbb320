"""What a worker's host can carry: trials wait here until their sandbox fits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchflow_client.errors import SandboxError

_WAIT_S = 0.5
"""Seconds between two looks for room; a trial that ends wakes those who wait."""


class Capacity:
    """Processor cores and memory that the sandboxes of one worker may take together.

    Without a limit nothing waits. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._cpus: float | None = None
        self._memory_mb: int | None = None
        self._used_cpus = 0.0
        self._used_memory_mb = 0
        self._freed = threading.Condition()

    def limit(self, *, cpus: float | None, memory_mb: int | None) -> None:
        """Set what there is; None = no limit. Meant for the worker's start."""
        self._cpus, self._memory_mb = cpus, memory_mb

    @asynccontextmanager
    async def hold(self, cpus: float | None, memory_mb: int | None) -> AsyncGenerator[None, None]:
        """Wait for room, and keep it inside the block.

        Args:
            cpus: Cores the sandbox may use; None = it has no limit, so it takes all.
            memory_mb: Memory in MiB; None likewise.

        Raises:
            SandboxError: `sandbox.too_large`: it would not fit on an idle worker.
        """
        need_cpus = self._needed(cpus, self._cpus, "cores")
        need_memory_mb = int(self._needed(memory_mb, self._memory_mb, "MiB of memory"))
        # Taken here and not in the waiting thread: a trial that is cancelled meanwhile takes nothing.
        while not self._take(need_cpus, need_memory_mb):
            await asyncio.to_thread(self._wait)
        try:
            yield
        finally:
            self._give(need_cpus, need_memory_mb)

    @staticmethod
    def _needed(asked: float | None, limit: float | None, unit: str) -> float:
        if limit is None:
            return 0.0
        if asked is None:
            return limit
        if asked > limit:
            raise SandboxError(
                "sandbox.too_large",
                f"The sandbox needs {asked:g} {unit}; this worker has {limit:g}.",
                hint="Start a worker with more (`bench worker --cpus --memory-mb`), or lower the task's request.",
            )
        return asked

    def _take(self, cpus: float, memory_mb: int) -> bool:
        with self._freed:
            if not self._fits(cpus, memory_mb):
                return False
            self._used_cpus += cpus
            self._used_memory_mb += memory_mb
            return True

    def _wait(self) -> None:
        with self._freed:
            self._freed.wait(_WAIT_S)

    def _fits(self, cpus: float, memory_mb: int) -> bool:
        has_cpus = self._cpus is None or self._used_cpus + cpus <= self._cpus + 1e-9
        has_memory = self._memory_mb is None or self._used_memory_mb + memory_mb <= self._memory_mb
        return has_cpus and has_memory

    def _give(self, cpus: float, memory_mb: int) -> None:
        with self._freed:
            self._used_cpus -= cpus
            self._used_memory_mb -= memory_mb
            self._freed.notify_all()
