"""Locks that all trials of one host take turns by: files, which the kernel frees when a worker dies."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError

__all__ = ["HostLocks"]

_LOOK_S: Final = 0.1
"""Seconds between two looks at a lock another trial holds."""

_WAIT_S: Final = 86_400.0
"""Seconds a trial waits for its turn; every wait has an end."""


class HostLocks:
    """Named locks of one host, shared by every worker with the same state folder.

    Args:
        folder: Folder of the lock files; made on first use. They stay: removing one
            that somebody waits for would let two trials in.
        wait_s: Seconds to wait for a turn.
    """

    def __init__(self, folder: Path, *, wait_s: float = _WAIT_S) -> None:
        self._folder = folder
        self._wait_s = wait_s
        self._kept: list[int] = []

    def keep(self, name: str) -> bool:
        """Take a name for as long as this process lives; False = another one has it.

        Raises:
            SandboxError: `sandbox.start_failed`: its file cannot be made.
        """
        file = self._open(name)
        if not _is_taken(file):
            os.close(file)
            return False
        self._kept.append(file)
        return True

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncGenerator[None, None]:
        """Wait for a name to be free, and keep it inside the block.

        Guarantees: a worker that is killed holds nothing any more; a trial that is
        cancelled while it waits takes nothing.

        Raises:
            SandboxError: `sandbox.start_failed`: it was not free in time, or its file cannot be made.
        """
        file = self._open(name)
        try:
            await self._take(file, name)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def _open(self, name: str) -> int:
        place = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SandboxError(
                "sandbox.start_failed",
                f"The lock {name!r} cannot be taken: {place} cannot be opened ({error.strerror}).",
                hint="Make the worker's state folder writable.",
            ) from error

    async def _take(self, file: int, name: str) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while True:  # no event: the holder may be another process
                    if _is_taken(file):
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise SandboxError(
                "sandbox.start_failed",
                f"The lock {name!r} was not free within {self._wait_s:g} s: other trials of this host hold it.",
                hint="Look at the trials that run on this host.",
            ) from error


def _is_taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
