"""TLS that the gateway opens for hosts with blocked URLs: it is the server to the sandbox, and a client to the host."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Sequence
from functools import cached_property

from benchflow_workers.sandbox.network_egress import EgressOptions, TlsAuthority
from benchflow_workers.sandbox.network_streams import (
    HEAD_BYTES,
    Ends,
    close,
    closing,
    connect,
    end_tasks,
    pump,
)

_HANDSHAKE_S = 30.0
_SHUTDOWN_S = 2.0
_DRAIN_S = 5.0


class TlsOpener:
    """Opens the TLS of one sandbox.

    Args:
        authority: Signs for its hosts.
        options: Whom servers may be signed by.
    """

    def __init__(self, authority: TlsAuthority, options: EgressOptions) -> None:
        self._authority = authority
        self._options = options

    @contextlib.asynccontextmanager
    async def opened(self, client: Ends, host: str, first: bytes) -> AsyncGenerator[Ends, None]:
        """Yield what a client of the sandbox sends inside TLS that it meant for a host.

        Args:
            client: The connection; its hello was read.
            host: The server name of the hello.
            first: All that was read.

        Raises:
            OSError: No handshake came about: the client does not trust the authority, for example.
        """
        context = self._authority.context(host)
        # The TLS layer reads sockets only, and part of the hello is no longer in this one: it gets another.
        outer, inner = socket.socketpair()
        raw = Ends(*await asyncio.open_connection(sock=outer))
        raw.writer.write(first)
        coming = asyncio.create_task(pump(client.reader, raw.writer))
        going = asyncio.create_task(pump(raw.reader, client.writer))
        try:
            plain = await _accepted(inner, context)
            async with closing(plain):
                yield plain
            await asyncio.wait({going}, timeout=_DRAIN_S)
        finally:
            await end_tasks(coming, going)
            await close(raw.writer)

    async def connect(self, addresses: Sequence[str], port: int, host: str) -> Ends:
        """Connect to the real host, which must prove who it is.

        Raises:
            OSError: It does not answer, or its certificate is not one for the host.
        """
        return await connect(addresses, port, tls=self._towards_hosts, name=host)

    @cached_property
    def _towards_hosts(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._options.extra_ca is not None:
            context.load_verify_locations(self._options.extra_ca)
        context.set_alpn_protocols(["http/1.1"])
        return context


async def _accepted(sock: socket.socket, context: ssl.SSLContext) -> Ends:
    """Return the plain side of a socket that a TLS client speaks to."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    reader = asyncio.StreamReader(limit=HEAD_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        sock,
        ssl=context,
        ssl_handshake_timeout=_HANDSHAKE_S,
        ssl_shutdown_timeout=_SHUTDOWN_S,
    )
    return Ends(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
