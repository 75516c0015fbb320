"""Byte streams between two ends: connect, copy, close; for the gateway and for listeners inside a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from ssl import SSLContext

HEAD_BYTES = 1 << 16
"""Of what a connection begins with; a TLS hello or the head of a request is smaller."""

CHUNK_BYTES = 1 << 16
"""Bytes copied at once."""

_CONNECT_S = 20.0
_CLOSE_S = 5.0


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
