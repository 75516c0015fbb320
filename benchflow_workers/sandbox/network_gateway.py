"""The only way out of a sandbox whose network is a list of names.

Everything the sandbox sends ends at sockets of the worker (`network_links`). DNS is
answered here: a permitted name has the gateway's address, any other does not exist.
A connection says which host it is for, by its Host header or its TLS hello; when the name
is permitted the worker resolves it, connects, and passes bytes on. TLS is opened for the
hosts of blocked URLs only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchflow_workers.sandbox import network_urls
from benchflow_workers.sandbox.network import PORTS, NetworkPolicy, canonical
from benchflow_workers.sandbox.network_egress import (
    DENIED_QUESTION,
    DENIED_URL,
    LITERAL,
    NO_NAME,
    OTHER_AUTHORITY,
    RULES,
    UNREACHABLE,
    EgressOptions,
    Exit,
    Exits,
)
from benchflow_workers.sandbox.network_http import pass_request, read_head, refuse, tell_unreached
from benchflow_workers.sandbox.network_links import DNS_PORT, GATEWAY, IP_PKTINFO, Junction, join
from benchflow_workers.sandbox.network_log import EgressLog, Refusal
from benchflow_workers.sandbox.network_names import (
    TLS_HANDSHAKE,
    HttpHead,
    answer_dns,
    read_question,
    read_server_name,
)
from benchflow_workers.sandbox.network_streams import (
    CHUNK_BYTES,
    HEAD_BYTES,
    Acceptor,
    Ends,
    closing,
    connect,
    end_tasks,
    exchange,
)
from benchflow_workers.sandbox.network_tls import TlsOpener

logger = logging.getLogger(__name__)

_HEAD_S = 30.0
_CONNECTIONS = 256  # at once for one sandbox: a worker's descriptors serve many
_HTTP, _HTTPS = PORTS


@dataclass(frozen=True, slots=True)
class _Call:
    """What a connection says that it is for.

    Attributes:
        host: The host; "" = it names none.
        first: Bytes that were read of a TLS connection.
        head: Head of the request; None = it is TLS, or names no host.
        is_tls: It is TLS.
    """

    host: str
    first: bytes = b""
    head: HttpHead | None = None
    is_tls: bool = False


class Gateway:
    """Serves the far end of one sandbox's cable in a thread of its own.

    Args:
        policy: What may be reached.
        options: How.
        log: Where refusals are written down.
        opener: Opens TLS for the hosts of blocked URLs; None = there are none.
    """

    def __init__(
        self, policy: NetworkPolicy, options: EgressOptions, log: EgressLog, opener: TlsOpener | None
    ) -> None:
        self._policy = policy
        self._exits = Exits(policy, options)
        self._ports = options.ports
        self._log = log
        self._opener = opener
        self._opened_hosts = policy.opened_hosts
        self._junction: Junction | None = None
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def open_blocking(self, namespace: int) -> None:
        """Lay the cable of a namespace and serve it; returns when names are answered.

        Raises:
            OSError: The host does not allow it, or the namespace has a cable already; nothing is left.
        """
        try:
            junction = join(namespace, self._ports)
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
        acceptor = Acceptor(_CONNECTIONS)
        accepting = [
            self._loop.create_task(acceptor.accept(sock, partial(self._served, port)))
            for sock, port in junction.streams
        ]
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(junction.questions)
            self._loop.run_until_complete(end_tasks(*accepting))
            self._loop.run_until_complete(acceptor.end())
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
        is_permitted = question is not None and self._exits.is_known(question.name)
        if question is not None and not is_permitted:
            is_listed = self._policy.mode == "allowlist"
            rule = DENIED_QUESTION if is_listed else RULES[self._policy.mode]
            self._note(Refusal(question.name, DNS_PORT, rule), GATEWAY)
        return answer_dns(packet, question, GATEWAY if is_permitted else None)

    async def _served(self, port: int, ends: Ends) -> None:
        asked = str(ends.writer.get_extra_info("sockname")[0])
        if port == DNS_PORT:
            await self._answer_stream(ends)
        elif port in PORTS and asked != GATEWAY and self._policy.permits_address(ipaddress.ip_address(asked)):
            await self._pass_on(ends, (asked,), port, b"")
        else:
            await self._by_name(ends, asked, port)

    async def _answer_stream(self, ends: Ends) -> None:
        async with asyncio.timeout(_HEAD_S):
            size = int.from_bytes(await ends.reader.readexactly(2), "big")
            answer = self._named(await ends.reader.readexactly(max(size, 2)))
            ends.writer.write(len(answer).to_bytes(2, "big") + answer)
            await ends.writer.drain()

    async def _by_name(self, ends: Ends, asked: str, port: int) -> None:
        """Pass on what is for a permitted name; who did not ask for its address goes round the list."""
        async with asyncio.timeout(_HEAD_S):
            call = await _read_call(ends.reader, port)
        found = Exit(rule=NO_NAME)
        if call.host:
            found = await self._exits.find(call.host, port) if asked == GATEWAY else Exit(rule=LITERAL)
        if not found.addresses:
            self._note(_refusal(call, port, found.rule), asked)
            if not call.is_tls:
                await refuse(ends.writer, found.rule)
        elif call.head is not None:
            await self._pass_request(ends, found.addresses, port, call.head)
        elif self._opener is not None and canonical(call.host) in self._opened_hosts:
            await self._open(self._opener, ends, found.addresses, call, port=port)
        else:
            await self._pass_on(ends, found.addresses, port, call.first)

    async def _pass_on(self, ends: Ends, addresses: Sequence[str], port: int, first: bytes) -> None:
        async with closing(await connect(addresses, port)) as server:
            server.writer.write(first)
            await server.writer.drain()
            await exchange(ends, server)

    async def _pass_request(self, ends: Ends, addresses: Sequence[str], port: int, head: HttpHead) -> None:
        if await self._is_denied(ends, head, "http"):
            return
        async with closing(await connect(addresses, port)) as server:
            await pass_request(ends, server, head)

    async def _open(
        self, opener: TlsOpener, ends: Ends, addresses: Sequence[str], call: _Call, *, port: int
    ) -> None:
        """Open the TLS of a connection, and send its one request on where no URL forbids it."""
        host = canonical(call.host)
        async with opener.opened(ends, host, call.first) as plain:
            async with asyncio.timeout(_HEAD_S):
                head = await read_head(plain.reader, scheme="https", port=port)
            if head is None or canonical(head.host) != host:
                named = host if head is None else head.host
                self._note(Refusal(named, port, OTHER_AUTHORITY), GATEWAY)
                await refuse(plain.writer, OTHER_AUTHORITY)
                return
            if await self._is_denied(plain, head, "https"):
                return
            try:
                server = await opener.connect(addresses, port, host)
            except OSError as error:
                await tell_unreached(plain.writer, str(error))
                return
            async with closing(server):
                await pass_request(plain, server, head)

    async def _is_denied(self, ends: Ends, head: HttpHead, scheme: str) -> bool:
        """Return whether a request is for a blocked URL; it is then answered."""
        if self._policy.permits_url(head.host, head.target):
            return False
        host = canonical(head.host)
        port = _HTTPS if scheme == "https" else _HTTP
        url = network_urls.shown_url(scheme, host, head.target)
        self._note(Refusal(host, port, DENIED_URL, url), GATEWAY)
        await refuse(ends.writer, DENIED_URL)
        return True

    def _note(self, refusal: Refusal, asked: str) -> None:
        """Write down what was refused; a name that nobody knows was refused by no list."""
        is_kept = refusal.rule != UNREACHABLE and self._log.add(
            refusal if refusal.host else Refusal(asked, refusal.port, refusal.rule)
        )
        logger.log(
            logging.INFO if is_kept else logging.DEBUG,  # an agent that tries for ever fills no log
            "network: %r at %s, port %d, was refused: %s",
            refusal.url or refusal.host[:255], asked, refusal.port, refusal.rule,
            extra={"action": "egress_refused"},
        )  # fmt: skip


def _refusal(call: _Call, port: int, rule: str) -> Refusal:
    url = ""
    if call.head is not None:
        url = network_urls.shown_url("http", call.host, call.head.target)
    return Refusal(call.host, port, rule, url)


async def _read_call(reader: asyncio.StreamReader, port: int) -> _Call:
    """Return what a connection is for; on other ports than 80 and 443 its first byte says which way it says so."""
    first = b"" if port == _HTTP else await reader.readexactly(1)
    if port == _HTTPS or first == TLS_HANDSHAKE:
        return await _read_tls(reader, first)
    head = await read_head(reader, scheme="http", port=port, first=first)
    return _Call("" if head is None else head.host, head=head)


async def _read_tls(reader: asyncio.StreamReader, first: bytes) -> _Call:
    data = first
    while (name := read_server_name(data)) is None and len(data) < HEAD_BYTES:
        part = await reader.read(CHUNK_BYTES)
        if not part:
            return _Call("", is_tls=True)
        data += part
    return _Call(name or "", data, is_tls=True)
