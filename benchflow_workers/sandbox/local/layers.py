"""Frozen results of build steps, and the locks that let each be built once on a host."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.holder.kernel import sync_file_system
from benchflow_workers.sandbox.local.places import Places

_POLL_S = 0.02


class LayerCache:
    """Layers below the state folder.

    Args:
        places: The folders.
    """

    def __init__(self, places: Places) -> None:
        self._places = places

    def find(self, key: str) -> Path | None:
        """Return a frozen layer; None = it is not there."""
        folder = self._places.layers / key
        return folder if folder.is_dir() else None

    def freeze(self, key: str, uppers: Path) -> Path:
        """Keep what a build step wrote as a layer that never changes again.

        Slots in which nothing was written are left out. A layer that another
        process froze meanwhile is taken instead.
        """
        draft = self._places.layers / f".{key}-{uuid.uuid4().hex[:8]}"
        draft.mkdir()
        for upper in sorted(uppers.iterdir()):
            with os.scandir(upper) as items:
                is_empty = next(items, None) is None
            if not is_empty:
                upper.rename(draft / upper.name)
        sync_file_system(str(draft))  # a layer that lost its content to a power cut would look complete
        layer = self._places.layers / key
        try:
            draft.rename(layer)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
        return layer

    @asynccontextmanager
    async def building(self, key: str, timeout_s: float) -> AsyncGenerator[None, None]:
        """Hold the right to build an image; other processes of this host wait.

        Raises:
            SandboxError: `sandbox.build_failed` when another build of it takes longer than the timeout.
        """
        with self._lock_file(key) as fd:
            try:
                async with asyncio.timeout(timeout_s):
                    await _lock(fd)
            except TimeoutError as error:
                raise SandboxError(
                    "sandbox.build_failed",
                    f"Another worker of this host has been building the same image for {timeout_s:g} s.",
                    hint="Raise environment.build_timeout_sec of the task, or look what that build waits for.",
                ) from error
            yield

    @contextmanager
    def _lock_file(self, key: str) -> Generator[int, None, None]:
        fd = os.open(self._places.locks / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)  # gives the lock back


async def _lock(fd: int) -> None:
    """Take a lock that other processes and threads hold; a blocking call could not be cancelled."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_POLL_S)
        else:
            return
