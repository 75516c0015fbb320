"""One HTTP/1 request on its way through the gateway: its head, its body to the last byte, its answer."""

from __future__ import annotations

import asyncio

from benchflow_workers.sandbox.network_names import HttpHead, read_http_head
from benchflow_workers.sandbox.network_streams import CHUNK_BYTES, Ends, end_tasks, pump

_REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\nX-BenchFlow-Blocked: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_NO_SERVER = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"


async def read_head(
    reader: asyncio.StreamReader, *, scheme: str, port: int, first: bytes = b""
) -> HttpHead | None:
    """Return the head of the request a connection begins with; None = it names no single host.

    Args:
        reader: The connection.
        scheme: `http` or `https`.
        port: What the connection is for.
        first: What was read of it before.
    """
    return read_http_head(first + await reader.readuntil(b"\r\n\r\n"), scheme=scheme, port=port)


async def pass_request(client: Ends, server: Ends, head: HttpHead) -> None:
    """Send one request with its body and nothing after it, and its answer back.

    A second request on the same connection could be for another host or another page, and
    is never sent on. The server is asked to close after the first.
    """
    server.writer.write(head.forwarded)
    await server.writer.drain()
    sending = asyncio.create_task(_send_body(client.reader, server.writer, head))
    try:
        await pump(server.reader, client.writer)
    finally:
        await end_tasks(sending)


async def refuse(writer: asyncio.StreamWriter, rule: str) -> None:
    """Answer a request that is not sent on with the rule that blocks it."""
    writer.write(_REFUSAL % rule.encode())
    await writer.drain()


async def tell_unreached(writer: asyncio.StreamWriter, reason: str) -> None:
    """Answer a request whose server could not be reached, or is not who it should be."""
    text = f"The server could not be reached through the gateway: {reason}\n".encode()
    writer.write(_NO_SERVER % (len(text), text))
    await writer.drain()


async def _send_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: HttpHead) -> None:
    if head.is_chunked:
        await _send_chunks(reader, writer)
    else:
        await _send_bytes(reader, writer, head.body_bytes)


async def _send_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    while size > 0:
        data = await reader.read(min(size, CHUNK_BYTES))
        if not data:
            return
        writer.write(data)
        await writer.drain()
        size -= len(data)


async def _send_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a body in chunks up to its last one, trailers left out (RFC 9112, 7.1)."""
    while True:
        line = await reader.readuntil(b"\r\n")
        digits = line.partition(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise ConnectionAbortedError("a chunk of a body has no size")
        size = int(digits, 16)
        if size == 0:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return
        writer.write(digits + b"\r\n")
        await _send_bytes(reader, writer, size)
        if await reader.readexactly(2) != b"\r\n":
            raise ConnectionAbortedError("a chunk of a body is longer than it says")
        writer.write(b"\r\n")
