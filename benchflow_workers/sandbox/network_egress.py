"""Where a connection out of a sandbox may go: names to addresses, and why not.

A name is resolved once, on the worker, and only the addresses found then are connected to:
what a name's owner answers later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Protocol

from benchflow_workers.sandbox.network import (
    PORTS,
    Address,
    NetworkPolicy,
    as_address,
    blocks,
    canonical,
    is_in,
)

_RESOLVE_S = 20.0
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""Addresses that stand for those of version 4 (RFC 6052)."""

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, best first; OSError = it has none."""

RULES = {"public": "unreachable", "allowlist": "not-allowlisted", "denylist": "denied-host"}
"""What a name is refused with that a policy does not permit."""

UNREACHABLE, PRIVATE, LITERAL, NO_NAME = "unreachable", "private-address", "ip-literal", "no-name"
"""Rules that need no list: the name has no address, or a private one; an address was asked for; nothing was."""

DENIED_URL, OTHER_AUTHORITY, DENIED_QUESTION = "denied-url", "authority-mismatch", "dns-not-allowlisted"
"""Rules of requests for blocked URLs, of those that name another host than TLS did, of names of no allowlist."""


async def resolve_as_host(name: str) -> Sequence[str]:
    """Return the addresses a name has on the worker's host.

    Raises:
        OSError: It has none, or nobody answers.
    """
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(item[4][0]) for item in found]


class TlsAuthority(Protocol):
    """Signs for the hosts of one sandbox whose TLS is opened; its key stays in the worker's memory."""

    @property
    def certificate(self) -> str:
        """Its certificate (PEM), which limits it to these hosts and those below them."""
        ...

    def context(self, host: str) -> SSLContext:
        """Return what a server needs to speak as a host, over HTTP/1.1 only."""
        ...


@dataclass(frozen=True, slots=True)
class EgressOptions:
    """How listed names are reached.

    Attributes:
        private: What the operator opens of private networks. An address or a block (`10.8.0.0/16`):
            a permitted name may have such an address; without it the name is refused, so that no
            list of names opens the worker's own network. `HOST:PORT`: that server is reached by
            name, whatever its address, under every allowlist, and under a denylist that does
            not block it.
        resolve: Finds the addresses of a name.
        authority: Makes the authority of a sandbox whose TLS is opened for some hosts; None = it
            cannot be opened here.
        extra_ca: Certificates (PEM) that servers may be signed with on top of the host's own.
    """

    private: tuple[str, ...] = ()
    resolve: Resolve = resolve_as_host
    authority: Callable[[frozenset[str]], TlsAuthority] | None = None
    extra_ca: Path | None = None

    @property
    def servers(self) -> frozenset[tuple[str, int]]:
        """Hosts and ports of the servers that are opened by name."""
        return frozenset(server for item in self.private if (server := _server(item)) is not None)

    @property
    def ports(self) -> tuple[int, ...]:
        """Where connections are taken: http, https, and those of opened servers."""
        return (*PORTS, *sorted({port for _, port in self.servers} - set(PORTS)))


@dataclass(frozen=True, slots=True)
class Exit:
    """Where a connection may go; without addresses, the rule that refuses it."""

    addresses: tuple[str, ...] = ()
    rule: str = ""


class Exits:
    """Decides for one policy.

    Args:
        policy: What may be reached.
        options: How.
    """

    def __init__(self, policy: NetworkPolicy, options: EgressOptions) -> None:
        self._policy = policy
        self._options = options
        self._blocks = blocks(options.private)

    def is_known(self, name: str) -> bool:
        """Return whether a name exists in the sandbox, on any port."""
        host = canonical(name)
        return self._policy.permits_name(host) or any(
            self._is_opened(host, port) for port in self._options.ports
        )

    async def find(self, host: str, port: int) -> Exit:
        """Return where a connection for a host goes."""
        literal = as_address(host)
        if literal is not None:
            is_permitted = port in PORTS and self._policy.permits_address(literal)
            return Exit((str(literal),)) if is_permitted else Exit(rule=LITERAL)
        name = canonical(host)
        is_opened = self._is_opened(name, port)
        if not is_opened and not (port in PORTS and self._policy.permits_name(name)):
            return Exit(rule=RULES[self._policy.mode] if name else NO_NAME)
        try:
            async with asyncio.timeout(_RESOLVE_S):
                found = [as_address(text) for text in await self._options.resolve(name)]
        except (OSError, TimeoutError, UnicodeError):
            return Exit(rule=UNREACHABLE)
        reachable = tuple(
            str(item) for item in found if item is not None and (is_opened or self._is_reachable(item))
        )
        return Exit(reachable, "" if reachable else PRIVATE if found else UNREACHABLE)

    def _is_opened(self, name: str, port: int) -> bool:
        """Return whether the operator opens this very server, and no denylist says otherwise."""
        is_blocked = self._policy.mode == "denylist" and not self._policy.permits_name(name)
        return (name, port) in self._options.servers and not is_blocked

    def _is_reachable(self, address: Address) -> bool:
        """Return whether a permitted name may have this address; those of the worker's own network are refused."""
        meant = _meant(address)
        if self._policy.permits_address(meant) or is_in(meant, self._blocks):
            return True
        return meant.is_global and not meant.is_multicast


def _server(item: str) -> tuple[str, int] | None:
    if blocks((item,)):
        return None
    host, _, port = item.rpartition(":")
    name = canonical(host)
    is_server = bool(name) and as_address(name) is None and port.isascii() and port.isdigit()
    return (name, int(port)) if is_server and 0 < int(port) < 1 << 16 and int(port) != 53 else None


def _meant(address: Address) -> Address:
    """Return the address of version 4 that one of version 6 stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
