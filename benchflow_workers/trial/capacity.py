"""What a worker's host can carry: trials wait here until their sandbox fits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from benchflow_client.errors import SandboxError, WorkerError

_WAIT_S = 0.5
"""Seconds between two looks for room; a trial that ends wakes those who wait."""


class Capacity:
    """Processor cores, memory and GPUs that the sandboxes of one worker may take together.

    Without a limit nothing waits. Safe to use from several threads.

    Args:
        gpus: The GPUs there are; each is given to one sandbox at a time.
        keep: Takes a name from every other process of this host, where none has it.
    """

    def __init__(self, *, gpus: Sequence[str] = (), keep: Callable[[str], bool] = lambda _: True) -> None:
        self._keep = keep
        self._cpus: float | None = None
        self._memory_mb: int | None = None
        self._used_cpus = 0.0
        self._used_memory_mb = 0
        self._gpus = tuple(gpus)
        self._free_gpus = list(gpus)
        self._freed = threading.Condition()

    def limit(self, *, cpus: float | None, memory_mb: int | None) -> None:
        """Set what there is; None = no limit. Meant for the worker's start."""
        self._cpus, self._memory_mb = cpus, memory_mb

    def keep_gpus(self) -> None:
        """Take the GPUs from every other worker of this host for good. Meant for the worker's start.

        Raises:
            WorkerError: Another worker has one of them.
        """
        for gpu in self._gpus:
            if not self._keep(f"gpu {gpu}"):
                raise WorkerError(
                    f"GPU {gpu} is given out by another worker of this host.",
                    hint="Tell each worker GPUs of its own: BENCHFLOW_GPUS.",
                )

    @asynccontextmanager
    async def hold(
        self, cpus: float | None, memory_mb: int | None, *, gpus: int = 0
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Wait for room, and keep it inside the block.

        Args:
            cpus: Cores the sandbox may use; None = it has no limit, so it takes all.
            memory_mb: Memory in MiB; None likewise.
            gpus: GPUs it needs.

        Yields:
            The GPUs, nobody else's inside the block. All of the room is taken at once, so
            that nobody keeps a part of it while it waits for the rest.

        Raises:
            SandboxError: `sandbox.too_large`: it would not fit on an idle worker.
        """
        need_cpus = self._needed(cpus, self._cpus, "cores")
        need_memory_mb = int(self._needed(memory_mb, self._memory_mb, "MiB of memory"))
        self._check_gpus(gpus)
        # Taken here and not in the waiting thread: a trial that is cancelled meanwhile takes nothing.
        while (devices := self._take(need_cpus, need_memory_mb, gpus)) is None:
            await asyncio.to_thread(self._wait)
        try:
            yield devices
        finally:
            self._give(need_cpus, need_memory_mb, devices)

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

    def _check_gpus(self, asked: int) -> None:
        if asked > len(self._gpus):
            raise SandboxError(
                "sandbox.too_large",
                f"The sandbox needs {asked} GPUs; this worker has {len(self._gpus)}.",
                hint="Start a worker with more (BENCHFLOW_GPUS), or lower the task's request (sandbox.gpus).",
            )

    def _take(self, cpus: float, memory_mb: int, gpus: int) -> tuple[str, ...] | None:
        """Take all of it and return the GPUs; None = it does not fit now."""
        with self._freed:
            if not self._fits(cpus, memory_mb) or gpus > len(self._free_gpus):
                return None
            self._used_cpus += cpus
            self._used_memory_mb += memory_mb
            devices, self._free_gpus = tuple(self._free_gpus[:gpus]), self._free_gpus[gpus:]
            return devices

    def _wait(self) -> None:
        with self._freed:
            self._freed.wait(_WAIT_S)

    def _fits(self, cpus: float, memory_mb: int) -> bool:
        has_cpus = self._cpus is None or self._used_cpus + cpus <= self._cpus + 1e-9
        has_memory = self._memory_mb is None or self._used_memory_mb + memory_mb <= self._memory_mb
        return has_cpus and has_memory

    def _give(self, cpus: float, memory_mb: int, gpus: Sequence[str]) -> None:
        with self._freed:
            self._used_cpus -= cpus
            self._used_memory_mb -= memory_mb
            self._free_gpus = sorted((*self._free_gpus, *gpus), key=self._gpus.index)
            self._freed.notify_all()
