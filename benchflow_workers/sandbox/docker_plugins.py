"""The plugins of the `docker` program on this host, for what the Engine API does not do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from benchflow_workers.sandbox.finishing import finish

__all__ = ["DOCKER_PROGRAM", "DockerPlugins"]

DOCKER_PROGRAM: Final = "docker"
"""The program whose plugins are used."""

_ASK_TIMEOUT_S: Final = 20.0
_CHUNK_BYTES: Final = 1 << 16
_LINE_LIMIT_BYTES: Final = 1 << 16
_GONE_S: Final = 10.0


class DockerPlugins:
    """Runs plugins; nothing is asked before the first use, and what was found is remembered.

    Args:
        program: Name or path of the docker program; one that does not exist has no plugins.
    """

    def __init__(self, program: str = DOCKER_PROGRAM) -> None:
        self._program = program
        self._found: dict[str, bool] = {}

    async def has(self, name: str) -> bool:
        """Return whether a plugin is installed here and starts."""
        if name not in self._found:
            self._found[name] = await self._starts(name)
        return self._found[name]

    async def run(
        self,
        words: Sequence[str],
        take: Callable[[str], None],
        *,
        stdin: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Run the program and give every line it prints to `take`; cancelled, all of it is killed first.

        Args:
            words: Its arguments.
            take: Gets both streams' lines in order, cut where they are very long.
            stdin: File it reads; None = nothing.
            env: All its variables; None = this process's.

        Returns:
            Its exit code.

        Raises:
            OSError: It cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            shutil.which(self._program) or self._program,
            *words,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
        try:
            await _read_lines(process, take)
            return await process.wait()
        finally:
            await finish(_ended(process))

    async def _starts(self, name: str) -> bool:
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                return await self.run((name, "version"), lambda _: None) == 0
        except (OSError, TimeoutError):
            return False


async def _read_lines(process: asyncio.subprocess.Process, take: Callable[[str], None]) -> None:
    rest = b""
    while process.stdout is not None and (data := await process.stdout.read(_CHUNK_BYTES)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            take(line[:_LINE_LIMIT_BYTES].decode("utf-8", "replace"))
        rest = rest[-_LINE_LIMIT_BYTES:]
    if rest:
        take(rest.decode("utf-8", "replace"))


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of a program and its children, which are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GONE_S):
            await process.wait()
