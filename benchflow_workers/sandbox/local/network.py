"""The network of one local sandbox while it runs: nothing, or a cable to the worker's gateway.

A sandbox whose network changes between phases has a network namespace of its own from the
start, so that servers in it are reached in every phase; in public phases it reaches http and
https through the gateway, as it would with a list that names everything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from benchflow_workers.sandbox.local.holder_client import Holder
from benchflow_workers.sandbox.network import NetworkPolicy, not_enforced
from benchflow_workers.sandbox.network_egress import EgressOptions
from benchflow_workers.sandbox.network_outlet import Outlet


class LocalNetwork:
    """Sets the network of a sandbox that has a namespace of its own.

    Args:
        holder: Its first process.
        options: How listed names are reached.
    """

    def __init__(self, holder: Holder, options: EgressOptions) -> None:
        self._holder = holder
        self._outlet = Outlet(options)
        self._policy: NetworkPolicy | None = NetworkPolicy("no-network")
        self._certificate = ""

    async def set(self, policy: NetworkPolicy) -> str:
        """Change what the sandbox reaches; see `NetworkSwitch`.

        Raises:
            SandboxError: `sandbox.network_not_enforced`; the sandbox then has no network.
        """
        if policy == self._policy:
            return self._certificate
        # Known again when all is done: a change that failed or was cancelled half way is done anew.
        self._policy = None
        try:
            if policy.mode == "no-network":
                await asyncio.to_thread(self._outlet.unplug_blocking)
                self._certificate = ""
            else:
                self._certificate = await asyncio.to_thread(
                    self._outlet.plug_in_blocking, policy, self._holder.pid, self._check_alive
                )
        except OSError as error:
            raise not_enforced(policy, error.strerror or str(error)) from error
        self._policy = policy
        return self._certificate

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what was refused since the last time."""
        return self._outlet.log.take()

    def close_blocking(self) -> None:
        """Pull the cable for good, if there is one; safe to call twice."""
        self._outlet.close_blocking()

    def _check_alive(self) -> None:
        if not self._holder.is_alive():
            raise ProcessLookupError(3, "the sandbox is gone")
