"""A program in a local sandbox that is talked to, over pipes of this process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.local.execution import Surroundings, answers_of, kill, read_end, request_of
from benchflow_workers.sandbox.local.holder_client import Channel, Holder
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import END_GRACE_S, STDERR_LIMIT_BYTES

__all__ = ["LocalProcess", "attach"]

_CHUNK_BYTES = 1 << 16
_PIPE_CHUNKS = 16  # the most a pipe holds: 1 MiB; a child may go on writing
_ROUNDS, _ROUND_S = 10, 1.0  # of killing

Streams = tuple[int, int, int]
"""Descriptors of standard input, output and error."""


class LocalProcess:
    """Three pipes and the channel that tells the end.

    Args:
        holder: First process of the sandbox.
        ending: The holder's answers, complete when the program ended.
        pipes: This side of standard input, output and error, in this order.

    Attributes:
        stderr: What it wrote to standard error so far.
    """

    def __init__(self, holder: Holder, ending: asyncio.Future[dict[str, Any]], pipes: Streams) -> None:
        self._holder = holder
        self._ending = ending
        self._stdin, self._stdout, self._stderr = pipes
        self._writing = asyncio.Lock()
        self.stderr = CappedOutput(STDERR_LIMIT_BYTES)
        self._is_over = False
        asyncio.get_running_loop().add_reader(self._stderr, self._read_error)

    async def read(self) -> bytes:
        """Return the next bytes of standard output; see the contract."""
        while not self._is_over:
            await asyncio.sleep(0)  # a program that prints faster than it is read leaves time for others
            with contextlib.suppress(BlockingIOError):
                part = os.read(self._stdout, _CHUNK_BYTES)
                self._is_over = not part
                return part
            await self._until_readable()
        return b""

    async def _until_readable(self) -> None:
        """Wait for output, or for the program's end and the moment in which output is still on its way."""
        async with _ready(asyncio.get_running_loop().add_reader, self._stdout) as readable:
            await self._first(readable)
            if readable.done():
                return
            done, _ = await asyncio.wait({readable}, timeout=END_GRACE_S)
            self._is_over = not done

    async def _first(self, ready: asyncio.Future[None]) -> None:
        """Wait for a pipe or for the program's end, whichever comes first."""
        waited: set[asyncio.Future[Any]] = {ready, self._ending}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    async def write(self, data: bytes) -> bool:
        """Write to standard input; see the contract."""
        left = memoryview(data)
        async with self._writing:
            while left and not self._ending.done():
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    async with _ready(asyncio.get_running_loop().add_writer, self._stdin) as writable:
                        await self._first(writable)
                except BrokenPipeError:
                    return False
        return not left

    async def wait(self) -> int:
        """Wait for the program's end; see the contract."""
        while await self.read():
            pass
        await asyncio.wait({self._ending})
        code, reason = read_end(self._ending, self._holder)
        for _ in range(_PIPE_CHUNKS):
            if not self._read_error():
                break
        self.stderr.write(reason.encode("utf-8", "surrogateescape"))
        return code

    def _read_error(self) -> bool:
        """Read a part of standard error; False = nothing is there now, or will be any more."""
        with contextlib.suppress(BlockingIOError):
            if part := os.read(self._stderr, _CHUNK_BYTES):
                self.stderr.write(part)
                return True
            asyncio.get_running_loop().remove_reader(self._stderr)
        return False

    def close(self) -> None:
        """Close this side of the pipes."""
        asyncio.get_running_loop().remove_reader(self._stderr)
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.close(pipe)


@asynccontextmanager
async def attach(
    holder: Holder, command: Command, around: Surroundings
) -> AsyncGenerator[LocalProcess, None]:
    """Start a program and talk to it within the block; all it started is killed at the block's end.

    Raises:
        SandboxError: `sandbox.lost`, or `sandbox.exec_failed` when something cannot be killed.
    """
    tag = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        channel = holder.ask(b"e")
        stack.callback(channel.close)
        ours, theirs = _pipes()
        request = request_of(command, around, tag, has_stdin=True)
        ending = asyncio.ensure_future(_talk(channel, request, theirs))
        process = LocalProcess(holder, ending, ours)
        stack.callback(process.close)
        try:
            yield process
        except BaseException:
            with contextlib.suppress(SandboxError):
                await finish(_end(holder, tag, ending))
            raise
        await finish(_end(holder, tag, ending))


async def _end(holder: Holder, tag: str, ending: asyncio.Future[dict[str, Any]]) -> None:
    """Kill what is left; a program that was only just being started has no tag yet, so its end is seen."""
    for _ in range(_ROUNDS):
        await kill(holder, {"tag": tag})
        if (await asyncio.wait({ending}, timeout=_ROUND_S))[0]:
            return
    ending.cancel()
    await asyncio.wait({ending})


def _pipes() -> tuple[Streams, Streams]:
    """Return our and the program's ends of its standard streams."""
    stdin, stdout, stderr = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
    ours = (stdin[1], stdout[0], stderr[0])
    for pipe in ours:
        os.set_blocking(pipe, False)
    return ours, (stdin[0], stdout[1], stderr[1])


async def _talk(channel: Channel, request: Mapping[str, Any], streams: Streams) -> dict[str, Any]:
    """Send the request and collect the answers until the channel ends."""
    stdin, stdout, stderr = streams
    try:
        await channel.send(request, [stdout, stderr, stdin])
    finally:
        for stream in streams:
            os.close(stream)
    return await answers_of(channel)


@asynccontextmanager
async def _ready(
    watch: Callable[[int, Callable[[], None]], None], pipe: int
) -> AsyncGenerator[asyncio.Future[None], None]:
    """Yield a future that is done when a pipe can be read or written, whichever `watch` watches."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    watch(pipe, set_ready)
    try:
        yield ready
    finally:
        loop.remove_reader(pipe)
        loop.remove_writer(pipe)
        ready.cancel()
