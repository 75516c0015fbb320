"""The only way out of a sandbox whose network is a list of names.

Everything the sandbox sends ends at sockets of the worker (`network_links`). DNS is
answered here: a permitted name has the gateway's address, any other does not exist.
A connection to port 80 or 443 says which host it is for, by its Host header or its TLS
hello; when the name is permitted the worker resolves it, connects, and passes bytes on.
TLS is not opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from benchflow_workers.sandbox.network import PORTS, Address, NetworkPolicy, as_address, blocks, is_in
from benchflow_workers.sandbox.network_links import DNS_PORT, GATEWAY, IP_PKTINFO, Junction, join
from benchflow_workers.sandbox.network_names import (
    answer_dns,
    read_http_head,
    read_question,
    read_server_name,
)

logger = logging.getLogger(__name__)

_HEAD_BYTES = 1 << 16  # of what a connection begins with; a TLS hello or the head of a request is smaller
_HEAD_S = 30.0
_CONNECT_S = 20.0
_CLOSE_S = 5.0
_CHUNK_BYTES = 1 << 16
_CONNECTIONS = 256  # at once for one sandbox: a worker's descriptors serve many
_HTTP, _HTTPS = PORTS
_REFUSAL = (
    b"HTTP/1.1 403 Forbidden\r\nX-BenchFlow-Blocked: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)
_RULES = {"public": "unreachable", "allowlist": "not-allowlisted", "denylist": "denied-host"}

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, best first; OSError = it has none."""


async def resolve_as_host(name: str) -> Sequence[str]:
    """Return the addresses a name has on the worker's host.

    Raises:
        OSError: It has none, or nobody answers.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(item[4][0]) for item in found]


@dataclass(frozen=True, slots=True)
class EgressOptions:
    """How listed names are reached.

    Attributes:
        private: Blocks of private addresses that a permitted name may have, for example of a
            mirror inside a company; without them a name with such an address is refused, so
            that no list of names opens the worker's own network.
        resolve: Finds the addresses of a name.
    """

    private: tuple[str, ...] = ()
    resolve: Resolve = resolve_as_host


class Gateway:
    """Serves the far end of one sandbox's cable in a thread of its own.

    Args:
        policy: What may be reached.
        options: How.
    """

    def __init__(self, policy: NetworkPolicy, options: EgressOptions) -> None:
        self._policy = policy
        self._options = options
        self._junction: Junction | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def open_blocking(self, namespace: int) -> None:
        """Lay the cable of a namespace and serve it; returns when names are answered.

        Raises:
            OSError: The host does not allow it, or the namespace has a cable already; nothing is left.
        """
        try:
            junction = join(namespace, PORTS)
        except BaseException:
            self._loop.close()
            raise
        self._junction = junction
        self._thread = threading.Thread(target=self._serve, args=(junction,), name="bf-gateway", daemon=True)
        self._thread.start()

    def close_blocking(self) -> None:
        """Cut the cable, then end every connection; safe to call twice."""
        junction, self._junction = self._junction, None
        if junction is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        junction.cut()

    def _serve(self, junction: Junction) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(junction.questions, self._answer, junction.questions)
        acceptors = [self._loop.create_task(self._accept(sock, port)) for sock, port in junction.streams]
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(junction.questions)
            ending = (*acceptors, *self._connections)
            for task in ending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*ending, return_exceptions=True))
            self._loop.close()

    def _answer(self, questions: socket.socket) -> None:
        """Answer one DNS question from the address it was sent to."""
        with contextlib.suppress(OSError):
            packet, ancillary, _, sender = questions.recvmsg(4096, 256)
            if len(packet) < 2:
                return
            to = next(data[8:12] for level, kind, data in ancillary if (level, kind) == (0, IP_PKTINFO))
            source = struct.pack("=i", 0) + to + bytes(4)
            questions.sendmsg([self._named(packet)], [(0, IP_PKTINFO, source)], 0, sender)

    def _named(self, packet: bytes) -> bytes:
        question = read_question(packet)
        is_permitted = question is not None and self._policy.permits_name(question.name)
        return answer_dns(packet, question, GATEWAY if is_permitted else None)

    async def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError:  # reset before it was taken, or no descriptor is free
                await asyncio.sleep(0.05)
                continue
            if len(self._connections) >= _CONNECTIONS:
                connection.close()
                continue
            task = self._loop.create_task(self._connection(connection, port))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _connection(self, connection: socket.socket, port: int) -> None:
        """Serve one connection to its end; whatever is wrong with it ends it."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=_HEAD_BYTES)
        try:
            await self._served(_Ends(reader, writer), connection.getsockname()[0], port)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("network: a connection to port %d ended: %r", port, error)
        finally:
            await _close(writer)

    async def _served(self, ends: _Ends, asked: str, port: int) -> None:
        if port == DNS_PORT:
            await self._answer_stream(ends)
        elif asked != GATEWAY and self._policy.permits_address(ipaddress.ip_address(asked)):
            await self._pass_on(ends, (asked,), port, b"")
        else:
            await self._by_name(ends, asked, port)

    async def _answer_stream(self, ends: _Ends) -> None:
        async with asyncio.timeout(_HEAD_S):
            size = int.from_bytes(await ends.reader.readexactly(2), "big")
            answer = self._named(await ends.reader.readexactly(max(size, 2)))
            ends.writer.write(len(answer).to_bytes(2, "big") + answer)
            await ends.writer.drain()

    async def _by_name(self, ends: _Ends, asked: str, port: int) -> None:
        """Pass on what is for a permitted name; who did not ask for its address goes round the list."""
        async with asyncio.timeout(_HEAD_S):
            host, first = await (_read_http(ends.reader) if port == _HTTP else _read_tls(ends.reader))
        addresses = await self._addresses(host) if asked == GATEWAY else ()
        if addresses:
            await self._pass_on(ends, addresses, port, first)
            return
        rule = "ip-literal" if asked != GATEWAY else _RULES[self._policy.mode]
        logger.info(
            "network: %r at %s, port %d, was refused: %s", host[:255], asked, port, rule,
            extra={"action": "egress_refused"},
        )  # fmt: skip
        if port == _HTTP:
            ends.writer.write(_REFUSAL % rule.encode())
            await ends.writer.drain()

    async def _addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a host that may be connected to."""
        literal = as_address(host)
        if literal is not None:
            return (str(literal),) if self._policy.permits_address(literal) else ()
        if not self._policy.permits_name(host):
            return ()
        try:
            async with asyncio.timeout(_CONNECT_S):
                found = await self._options.resolve(host)
        except (OSError, TimeoutError, UnicodeError):
            return ()
        return tuple(text for text in found if self._is_reachable(as_address(text)))

    def _is_reachable(self, address: Address | None) -> bool:
        """Return whether a permitted name may have this address; those of the worker's own network are refused."""
        if address is None:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if self._policy.permits_address(address) or is_in(address, blocks(self._options.private)):
            return True
        return address.is_global and not address.is_multicast

    async def _pass_on(self, ends: _Ends, addresses: Sequence[str], port: int, first: bytes) -> None:
        server = await _connect(addresses, port)
        try:
            server.writer.write(first)
            await server.writer.drain()
            await _exchange(ends, server)
        finally:
            await _close(server.writer)


class Outlet:
    """The cable of one sandbox: at most one gateway at a time, none once it is closed.

    Args:
        options: How listed names are reached.
    """

    def __init__(self, options: EgressOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None
        self._is_closed = False

    def plug_in_blocking(self, policy: NetworkPolicy, pid: int, check_owner: Callable[[], None]) -> None:
        """Join the network namespace of a process to a new gateway.

        Args:
            policy: What may be reached.
            pid: The process.
            check_owner: Raises OSError unless the number is still the right process's;
                asked after its namespace was opened.

        Raises:
            OSError: The host does not allow it, the process is gone, or the outlet is closed; nothing is left.
        """
        with self._lock:
            if self._is_closed:
                raise ProcessLookupError(3, "the sandbox was closed")
            self._unplug()
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                check_owner()
                gateway = Gateway(policy, self._options)
                gateway.open_blocking(namespace)
            finally:
                os.close(namespace)
            self._gateway = gateway

    def unplug_blocking(self) -> None:
        """Cut the cable and end every connection over it, if there is one."""
        with self._lock:
            self._unplug()

    def close_blocking(self) -> None:
        """Cut the cable for good; safe to call twice."""
        with self._lock:
            self._is_closed = True
            self._unplug()

    def _unplug(self) -> None:
        gateway, self._gateway = self._gateway, None
        if gateway is not None:
            gateway.close_blocking()


@dataclass(frozen=True, slots=True)
class _Ends:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def _read_http(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the host of a request and what is to be sent on; "" = it names none."""
    head = read_http_head(await reader.readuntil(b"\r\n\r\n"))
    return ("", b"") if head is None else (head.host, head.forwarded)


async def _read_tls(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Return the server name of a TLS hello and all that was read; "" = it names none."""
    data = b""
    while (name := read_server_name(data)) is None and len(data) < _HEAD_BYTES:
        part = await reader.read(_CHUNK_BYTES)
        if not part:
            return "", b""
        data += part
    return name or "", data


async def _connect(addresses: Sequence[str], port: int) -> _Ends:
    """Connect to the first address that answers.

    Raises:
        OSError: None does.
    """
    last: OSError = ConnectionRefusedError("no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return _Ends(*await asyncio.open_connection(address, port))
        except OSError as error:  # a TimeoutError is one
            last = error
    raise last


async def _exchange(one: _Ends, other: _Ends) -> None:
    """Copy in both directions until both have ended or one breaks."""
    pumps = [
        asyncio.create_task(_pump(one.reader, other.writer)),
        asyncio.create_task(_pump(other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end, and pass the end on."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Send what is left and close; who does not read it is not waited for long."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    except (OSError, asyncio.CancelledError) as error:
        writer.transport.abort()
        if isinstance(error, asyncio.CancelledError):
            raise
