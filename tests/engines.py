"""The host's Docker engine at another address, where a worker is not beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

SOCKET = "/var/run/docker.sock"


@asynccontextmanager
async def tcp_relay() -> AsyncGenerator[str, None]:
    """Serve the engine's socket on a port of loopback."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        there, back = await asyncio.open_unix_connection(SOCKET)
        try:
            await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)
        finally:
            serving.discard(asyncio.current_task())
            back.close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if serving:
        await asyncio.wait([task for task in serving if task], timeout=10)
