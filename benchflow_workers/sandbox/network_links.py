"""Network namespaces whose only cable leads to a place of the worker's own.

`join` puts a pair of virtual interfaces between a sandbox and a new, otherwise empty
network namespace. All that a sandbox sends, to whatever address, arrives there at
sockets of the worker; nothing is forwarded, so what no socket takes is refused. The
sockets and the cable are all there is: when the worker dies, both are gone, and the
sandbox is without a network.

Source: rtnetlink(7), veth(4), ip(7) on IP_TRANSPARENT, linux/if_link.h.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from benchflow_workers.sandbox.holder import kernel

T = TypeVar("T")

_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE, _DELROUTE, _ERROR = 16, 17, 20, 24, 25, 2
_REQUEST, _ACK, _EXCLUSIVE, _CREATE = 1, 4, 0x200, 0x400
_IFLA_NAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OIF, _RTA_GATEWAY = 4, 5
_TABLE_MAIN, _PROTOCOL_BOOT = 254, 3
_SCOPE_UNIVERSE, _SCOPE_HOST, _SCOPE_NOWHERE = 0, 254, 255
_UNICAST, _LOCAL = 1, 2
_IFF_UP = 1
_LOOPBACK = 1  # index of `lo` in every namespace
_PREFIX = 30
_BACKLOG = 128
_LOCALHOST = "127.0.0.1"

IP_TRANSPARENT, IP_PKTINFO = 19, 8
"""Options of level IP; Python's socket module lacks their names."""

GATEWAY, INSIDE = "198.18.0.1", "198.18.0.2"
"""The two ends of the cable, of the block that RFC 2544 keeps for tests; the same in every sandbox."""

CABLE = "bf0"
"""Name of the interface inside a sandbox."""

_FAR_END = "gw0"
DNS_PORT = 53
"""Where names are asked for."""


@dataclass(frozen=True, slots=True)
class Junction:
    """The worker's end of a cable.

    Attributes:
        streams: Listening sockets with their ports, for whatever address a sandbox connects to.
        questions: Datagram socket for DNS, for whatever address a sandbox asks.
        control: Netlink socket of the namespace; the cable is cut through it.
    """

    streams: tuple[tuple[socket.socket, int], ...]
    questions: socket.socket
    control: socket.socket

    def cut(self) -> None:
        """Remove the cable at once, then close the sockets; safe to call twice."""
        if self.control.fileno() >= 0:
            with contextlib.suppress(OSError):  # gone with the sandbox
                _ask(self.control, _DELLINK, _link(0) + _attribute(_IFLA_NAME, _FAR_END.encode() + b"\0"))
        for sock in (self.control, self.questions, *(stream for stream, _ in self.streams)):
            sock.close()


def new_namespace() -> int:
    """Return a descriptor of a new network namespace with nothing but its loopback.

    Raises:
        OSError: This process may not make one.
    """

    def make() -> int:
        kernel.unshare(kernel.NEWNET)
        with contextlib.closing(_netlink()) as control:
            _raise_link(control, _LOOPBACK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_a_thread(make)


def join(namespace: int, ports: Sequence[int]) -> Junction:
    """Lay the only cable of a namespace, and return its other end.

    Args:
        namespace: Descriptor of a network namespace without a cable and without a route.
        ports: Where streams are taken.

    Raises:
        OSError: A step is not allowed here or fails; nothing is left.
    """
    junction = _in_a_thread(lambda: _make_junction(namespace, ports))
    try:
        _in_a_thread(lambda: _plug_in(namespace))
    except BaseException:
        junction.cut()
        raise
    return junction


def listen_in(namespace: int, port: int) -> socket.socket:
    """Return a socket that listens on the loopback of a namespace.

    Args:
        namespace: Descriptor of a network namespace.
        port: Port; 0 = one that is free.

    Raises:
        OSError: The port is taken, or this process may not enter the namespace.
    """

    def listen() -> socket.socket:
        kernel.enter_network(namespace)
        return socket.create_server((_LOCALHOST, port), backlog=_BACKLOG)

    return _in_a_thread(listen)


def drop_default_routes(namespace: int) -> None:
    """Remove every default route of IP version 4 from a namespace; one without any is fine.

    Raises:
        OSError: This process may not.
    """

    def drop() -> None:
        kernel.enter_network(namespace)
        head = (socket.AF_INET, 0, 0, 0, _TABLE_MAIN, 0, _SCOPE_NOWHERE, 0)
        with contextlib.closing(_netlink()) as control, contextlib.suppress(ProcessLookupError):
            while True:
                _ask(control, _DELROUTE, struct.pack("=8BI", *head, 0))

    _in_a_thread(drop)


def problem() -> str:
    """Return why no network can be restricted on this host, found by doing it once; empty = it can be."""
    try:
        namespace = new_namespace()
        try:
            join(namespace, (80,)).cut()
        finally:
            os.close(namespace)
    except OSError as error:
        return f"{error.strerror or error}; the worker must be root with CAP_SYS_ADMIN and CAP_NET_ADMIN"
    return ""


def _make_junction(namespace: int, ports: Sequence[int]) -> Junction:
    kernel.unshare(kernel.NEWNET)
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(_netlink())
        _raise_link(control, _LOOPBACK)
        far = _link(0) + _attribute(_IFLA_NAME, CABLE.encode() + b"\0")
        far += _attribute(_IFLA_NET_NS_FD, struct.pack("=I", namespace))
        info = _attribute(_INFO_KIND, b"veth") + _attribute(_INFO_DATA, _attribute(_VETH_PEER, far))
        near = _attribute(_IFLA_NAME, _FAR_END.encode() + b"\0") + _attribute(_IFLA_LINKINFO, info)
        _ask(control, _NEWLINK, _link(0) + near, _CREATE | _EXCLUSIVE)
        index = socket.if_nametoindex(_FAR_END)
        _give_address(control, index, GATEWAY)
        _raise_link(control, index)
        _add_route(control, _LOOPBACK, kind=_LOCAL)
        streams = []
        for port in (*ports, DNS_PORT):
            listener = stack.enter_context(_taking_all(socket.SOCK_STREAM, port))
            listener.listen(_BACKLOG)
            streams.append((listener, port))
        questions = stack.enter_context(_taking_all(socket.SOCK_DGRAM, DNS_PORT))
        questions.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        stack.pop_all()
    return Junction(tuple(streams), questions, control)


def _plug_in(namespace: int) -> None:
    kernel.enter_network(namespace)
    with contextlib.closing(_netlink()) as control:
        index = socket.if_nametoindex(CABLE)
        _give_address(control, index, INSIDE)
        _raise_link(control, index)
        _add_route(control, index, kind=_UNICAST, gateway=GATEWAY)


def _taking_all(kind: socket.SocketKind, port: int) -> socket.socket:
    """Return a socket that takes what is sent to any address, and answers from that address."""
    sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
    sock.bind(("0.0.0.0", port))
    sock.setblocking(False)
    return sock


def _in_a_thread(work: Callable[[], T]) -> T:
    """Run work in a thread of its own, whose namespace may change: it ends with it."""
    with ThreadPoolExecutor(1, thread_name_prefix="bf-network") as pool:
        return pool.submit(work).result()


def _netlink() -> socket.socket:
    control = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    control.settimeout(10)
    control.bind((0, 0))
    return control


def _ask(control: socket.socket, kind: int, payload: bytes, flags: int = 0) -> None:
    """Send a request and read its acknowledgement."""
    head = struct.pack("=IHHII", 16 + len(payload), kind, flags | _REQUEST | _ACK, 1, 0)
    control.send(head + payload)
    answer = control.recv(1 << 16)
    _, answer_kind, _, _, _ = struct.unpack_from("=IHHII", answer)
    (code,) = struct.unpack_from("=i", answer, 16)
    if answer_kind != _ERROR or code != 0:
        raise OSError(-code, f"netlink request {kind}: {os.strerror(-code)}")


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _link(index: int, *, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, flags)


def _raise_link(control: socket.socket, index: int) -> None:
    _ask(control, _NEWLINK, _link(index, flags=_IFF_UP))


def _give_address(control: socket.socket, index: int, address: str) -> None:
    packed = socket.inet_aton(address)
    message = struct.pack("=BBBBI", socket.AF_INET, _PREFIX, 0, _SCOPE_UNIVERSE, index)
    message += _attribute(_IFA_ADDRESS, packed) + _attribute(_IFA_LOCAL, packed)
    _ask(control, _NEWADDR, message, _CREATE | _EXCLUSIVE)


def _add_route(control: socket.socket, index: int, *, kind: int, gateway: str | None = None) -> None:
    """Add the default route: through a gateway, or to this namespace itself, whatever the address."""
    scope = _SCOPE_HOST if kind == _LOCAL else _SCOPE_UNIVERSE
    head = (socket.AF_INET, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, scope, kind)
    message = struct.pack("=8BI", *head, 0) + _attribute(_RTA_OIF, struct.pack("=I", index))
    if gateway is not None:
        message += _attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
    _ask(control, _NEWROUTE, message, _CREATE | _EXCLUSIVE)
