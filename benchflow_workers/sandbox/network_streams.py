"""Byte streams between two ends: connect, copy, close; for the gateway and for listeners inside a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext

logger = logging.getLogger(__name__)

HEAD_BYTES = 1 << 16
"""Of what a connection begins with; a TLS hello or the head of a request is smaller."""

CHUNK_BYTES = 1 << 16
"""Bytes copied at once."""

_CONNECT_S = 20.0
_CLOSE_S = 5.0
_BREATH_S = 0.05


@dataclass(frozen=True, slots=True)
class Ends:
    """One connection: what comes, and what goes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def connect(
    addresses: Sequence[str], port: int, *, tls: SSLContext | None = None, name: str | None = None
) -> Ends:
    """Connect to the first address that answers.

    Args:
        addresses: In the order they are tried.
        port: On each of them.
        tls: Speak TLS, and check the server by this; None = plain.
        name: Whom the server must be, with `tls`.

    Raises:
        OSError: None does; the last one's error.
    """
    last: OSError = ConnectionRefusedError("no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return Ends(
                    *await asyncio.open_connection(
                        address, port, ssl=tls, server_hostname=name if tls else None, limit=HEAD_BYTES
                    )
                )
        except OSError as error:  # a TimeoutError and an SSLError are ones
            last = error
    raise last


class Acceptor:
    """Takes connections and serves each in a task of its own; one that fails ends alone.

    Args:
        most: Connections at once; one too many is closed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket, serve: Callable[[Ends], Awaitable[None]]) -> None:
        """Take the connections of a listening socket until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # reset before it was taken, or no descriptor is free
                await asyncio.sleep(_BREATH_S)
                continue
            if len(self._tasks) >= self._most:
                connection.close()
                continue
            task = loop.create_task(_served(connection, serve))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """End every connection."""
        await end_tasks(*self._tasks)


async def _served(connection: socket.socket, serve: Callable[[Ends], Awaitable[None]]) -> None:
    """Serve one connection to its end; whatever is wrong with it ends it."""
    ends = Ends(*await asyncio.open_connection(sock=connection, limit=HEAD_BYTES))
    try:
        async with closing(ends):
            await serve(ends)
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        logger.debug("network: a connection at %s ended: %r", ends.writer.get_extra_info("sockname"), error)


async def exchange(one: Ends, other: Ends) -> None:
    """Copy in both directions until both have ended or one breaks."""
    pumps = [
        asyncio.create_task(pump(one.reader, other.writer)),
        asyncio.create_task(pump(other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await end_tasks(*pumps)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def end_tasks(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for their end; what they raise is theirs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def closing(ends: Ends) -> AsyncGenerator[Ends, None]:
    """Close a connection at the end of the block; at once, what is left unsent, where that is cancelled."""
    try:
        yield ends
    except asyncio.CancelledError:
        ends.writer.transport.abort()
        raise
    finally:
        await close(ends.writer)


async def close(writer: asyncio.StreamWriter) -> None:
    """Send what is left and close; who does not read it is not waited for long."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError) as error:
        writer.transport.abort()
        if isinstance(error, asyncio.CancelledError):
            raise
