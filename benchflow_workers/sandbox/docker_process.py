"""A program in a container that is talked to: the engine's frames read on demand."""

from __future__ import annotations

import asyncio
import struct

from benchflow_workers.sandbox.docker_exec import DockerExec
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import END_GRACE_S, STDERR_LIMIT_BYTES

_HEADER = struct.Struct(">BxxxL")
_CHUNK_BYTES = 1 << 16
_STDERR = 2
_LOOK_S = 1.0  # how often a silent program is looked at
_FASTEST_LOOK_S = 0.01


class DockerProcess:
    """One hijacked connection and the command behind it.

    Args:
        execution: The command; created, not started.
        reader: Frames of the command's output.
        writer: Its standard input.

    Attributes:
        stderr: What it wrote to standard error so far.
    """

    def __init__(
        self, execution: DockerExec, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._execution = execution
        self._reader = reader
        self._writer = writer
        self._writing = asyncio.Lock()
        self.stderr = CappedOutput(STDERR_LIMIT_BYTES)
        self._stream, self._left = 0, 0  # of the frame that is being read
        self._is_over = False

    async def read(self) -> bytes:
        """Return the next bytes of standard output; see the contract."""
        while not self._is_over:
            part = await self._next()
            if self._stream != _STDERR:
                return part
            self.stderr.write(part)
        return b""

    async def _next(self) -> bytes:
        """Return the next bytes of either stream; empty = there will be no more."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    return await self._frame()
            except TimeoutError:
                if await self._execution.exit_code() is not None:
                    return await self._rest()

    async def _rest(self) -> bytes:
        """Return what is still on its way from a program that ended, though a child holds its pipe."""
        try:
            async with asyncio.timeout(END_GRACE_S):
                return await self._frame()
        except TimeoutError:
            self._is_over = True
            return b""

    async def _frame(self) -> bytes:
        try:
            if not self._left:
                self._stream, self._left = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            part = await self._reader.read(min(self._left, _CHUNK_BYTES))
        except (asyncio.IncompleteReadError, ConnectionError):
            part = b""
        self._left -= len(part)
        self._is_over = not part
        return part

    async def write(self, data: bytes) -> bool:
        """Write to standard input; see the contract."""
        try:
            async with self._writing:
                self._writer.write(data)
                await self._writer.drain()
        except ConnectionError:
            return False
        return not self._writer.is_closing()

    async def wait(self) -> int:
        """Wait for the program's end; see the contract."""
        while await self.read():
            pass
        delay_s = _FASTEST_LOOK_S
        while (code := await self._execution.exit_code()) is None:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LOOK_S)
        return code
