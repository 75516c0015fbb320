"""How what runs in a sandbox reaches this worker's model gateway; the one place that decides it.

At best the worker listens in the sandbox's own network. Where it cannot, a program inside
carries connections (`sandbox.relay`); where that cannot run, the gateway's public URL is left,
for sandboxes that may reach it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from benchflow_client.errors import SandboxError
from benchflow_client.schema.trial import EndpointKind
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.sandbox.listener import LoopbackTarget, listen_inside
from benchflow_workers.sandbox.network import NetworkPolicy, as_address
from benchflow_workers.sandbox.relay import Relay, relayed

__all__ = ["Way", "reach"]

_NOT_LISTENED: Final = frozenset({"task.unsupported", "sandbox.exec_failed"})
"""Why a port that may be any cannot be opened inside: the worker is elsewhere, or may not."""


@dataclass(frozen=True, slots=True)
class Way:
    """An open way to the gateway.

    Attributes:
        url: The gateway's address inside, without a path of its own at its end.
        kind: Which way it is.
        relay: What carries connections, where something does.
    """

    url: str
    kind: EndpointKind
    relay: Relay | None = None

    @property
    def failure(self) -> SandboxError | None:
        """Why it is closed already; None = it is not."""
        return None if self.relay is None else self.relay.failure


@contextlib.asynccontextmanager
async def reach(sandbox: Sandbox, gateway: Gateway, network: NetworkPolicy) -> AsyncGenerator[Way, None]:
    """Open a way for as long as the block runs.

    Args:
        sandbox: Where it begins.
        gateway: Where it ends.
        network: What the sandbox may reach meanwhile.

    Raises:
        SandboxError: `task.unsupported`: there is none, and what to set to have one; what the sandbox raises.
        WorkerError: The gateway could not be started.
    """
    async with contextlib.AsyncExitStack() as stack:
        yield await _opened(stack, sandbox, gateway, network)


async def _opened(
    stack: contextlib.AsyncExitStack, sandbox: Sandbox, gateway: Gateway, network: NetworkPolicy
) -> Way:
    target = LoopbackTarget(gateway.port)
    try:
        address = await stack.enter_async_context(listen_inside(sandbox, 0, target))
        return Way(f"http://{address}", "loopback")
    except SandboxError as error:
        if error.code not in _NOT_LISTENED:
            raise
    try:
        relay = await stack.enter_async_context(relayed(sandbox, target))
        return Way(f"http://{relay.address}", "relay", relay)
    except SandboxError as error:
        if error.code != "task.unsupported":
            raise
        return Way(_public(gateway.public_url, network, error), "public")


def _public(url: str, network: NetworkPolicy, missing: SandboxError) -> str:
    """Return the public URL where there is one that may be reached; else raise what to do."""
    if url and _may_reach(network, urlsplit(url).hostname or ""):
        return url
    why, hint = missing.message, missing.hint
    if url:
        why += f" The gateway's public URL is not reached with network {network.mode!r}."
    elif network.mode == "no-network":
        why += " A sandbox without a network has no other way to the model gateway."
    else:
        why += " The model gateway has no public URL either."
        hint = f"{hint} Or set BENCHFLOW_GATEWAY_LISTEN and BENCHFLOW_GATEWAY_PUBLIC_URL on the worker."
    raise SandboxError("task.unsupported", why, hint=hint)


def _may_reach(network: NetworkPolicy, host: str) -> bool:
    if network.mode == "public":
        return True
    address = as_address(host)
    return network.permits_name(host) if address is None else network.permits_address(address)
