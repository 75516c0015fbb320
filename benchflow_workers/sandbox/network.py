"""Which names and addresses a phase of a trial may reach, and how a sandbox is told.

Rules are about names: a listed name is reached over http and https (ports 80 and 443)
whatever its address, an address that is not listed is never reached. Below a name only a
denylist tells apart, by URLs.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from benchflow_client.errors import SandboxError
from benchflow_client.schema.task import NetworkMode
from benchflow_workers.sandbox import network_urls

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Block = ipaddress.IPv4Network | ipaddress.IPv6Network

NOT_ENFORCED = "sandbox.network_not_enforced"
"""Failure code when a network cannot be restricted as asked: the agent is then not started."""

LISTS: frozenset[str] = frozenset({"allowlist", "denylist"})
"""Modes that only a sandbox whose network can be changed while it runs enforces."""

PORTS = (80, 443)
"""Where a listed name is reached: http and https; every other port is closed."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What may be reached.

    Attributes:
        mode: `public` and `no-network` need no list; the others read theirs.
        allowed: Host names, `*.host` (names below it, not itself), addresses and blocks.
        blocked: Host names; the names below them are blocked as well.
        blocked_urls: URLs, each of which blocks all that begins with it at that very host.
    """

    mode: NetworkMode = "public"
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    blocked_urls: tuple[str, ...] = ()

    @property
    def opened_hosts(self) -> frozenset[str]:
        """The hosts whose TLS is opened: those with a blocked URL."""
        return network_urls.hosts_of(self.blocked_urls)

    def permits_url(self, host: str, target: str) -> bool:
        """Return whether a request for a path or URL at a permitted host may be sent."""
        return not network_urls.is_blocked(self.blocked_urls, canonical(host), target)

    @property
    def is_filtered(self) -> bool:
        """Whether names decide, and not a cable alone."""
        return self.mode in LISTS

    def permits_name(self, name: str) -> bool:
        """Return whether a host name may be reached; an address in place of a name never is."""
        host = canonical(name)
        if not host or as_address(host) is not None:
            return False
        if self.mode == "public":
            return True
        if self.mode == "denylist":
            return not any(_is_at_or_below(host, canonical(item)) for item in self.blocked)
        return self.mode == "allowlist" and any(_is_listed(host, canonical(item)) for item in self.allowed)

    def permits_address(self, address: Address) -> bool:
        """Return whether an address may be reached whatever its name.

        A denylist permits none, so that no name can be gone round; public leaves out the
        worker's own loopback and what is next to its host.
        """
        if self.mode == "public":
            return not (address.is_loopback or address.is_link_local or address.is_unspecified)
        return self.mode == "allowlist" and is_in(address, blocks(self.allowed))


@dataclass(frozen=True, slots=True)
class PhaseNetworks:
    """What each phase may reach; the build is always public.

    Attributes:
        setup: Set-up commands, the healthcheck and the agent's user.
        agent: The agent's turn.
        verifier: The tests.
    """

    setup: NetworkPolicy = NetworkPolicy()
    agent: NetworkPolicy = NetworkPolicy()
    verifier: NetworkPolicy = NetworkPolicy()

    @property
    def at_start(self) -> NetworkMode:
        """The network a sandbox is opened with: what its services may use before set-up begins."""
        return "no-network" if self.setup.mode == "no-network" else "public"

    @property
    def is_constant(self) -> bool:
        """Whether the network stays as the sandbox was opened."""
        return {self.setup, self.agent, self.verifier} == {NetworkPolicy(self.at_start)}


@runtime_checkable
class NetworkSwitch(Protocol):
    """A sandbox whose network can be changed while it runs."""

    async def set_network(self, policy: NetworkPolicy) -> str:
        """Make every process reach only what the policy permits, root's included.

        Returns:
            Certificate (PEM) of the authority that signs for the hosts whose TLS is opened, and
            for no others; programs inside that do not trust it fail there. "" = none is opened.

        Guarantees: enforced from outside on return; safe to call again with the
        same policy. A sandbox whose network could not be set has no network. The
        authority's key never enters the sandbox.

        Raises:
            SandboxError: `sandbox.network_not_enforced`, `sandbox.lost`.
        """
        ...


async def switch_network(sandbox: object, policy: NetworkPolicy) -> str:
    """Set the network of a sandbox that must be able to; returns what `set_network` does.

    Raises:
        SandboxError: `sandbox.network_not_enforced` when it is not, or when it fails.
    """
    if not isinstance(sandbox, NetworkSwitch):
        raise not_enforced(policy, "this kind of sandbox keeps the network it was opened with")
    return await sandbox.set_network(policy)


def not_enforced(policy: NetworkPolicy, why: str) -> SandboxError:
    """Return the error of a network that could not be set."""
    return SandboxError(
        NOT_ENFORCED,
        f"Network {policy.mode!r} could not be enforced: {why}.",
        hint="Run `bench doctor` on the worker's host: it says what is missing there.",
    )


def canonical(name: str) -> str:
    """Return a host name in the one form that is compared: lower case, ASCII, without the last dot."""
    host = name.strip().rstrip(".").lower()
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def as_address(text: str) -> Address | None:
    """Return a host as an address; None = it is a name."""
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def blocks(hosts: tuple[str, ...]) -> tuple[Block, ...]:
    """Return the addresses and blocks among listed hosts."""
    found = []
    for host in hosts:
        try:
            found.append(ipaddress.ip_network(host, strict=False))
        except ValueError:
            continue
    return tuple(found)


def is_in(address: Address, listed: tuple[Block, ...]) -> bool:
    """Return whether an address lies in one of the blocks."""
    return any(address.version == block.version and address in block for block in listed)


def _is_listed(host: str, item: str) -> bool:
    return host.endswith(item[1:]) if item.startswith("*.") else host == item


def _is_at_or_below(host: str, item: str) -> bool:
    return host == item or host.endswith(f".{item}")
