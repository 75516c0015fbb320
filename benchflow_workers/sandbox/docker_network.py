"""The network of one container while it runs: a bridge, nothing, or a cable to the worker's gateway.

The container keeps no right over any of them: cables are plugged and pulled by the engine and
by the worker, from outside, and root inside lacks the capability to change a route.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any, Literal

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox import network_links
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.listener import Door, Doors, Target
from benchflow_workers.sandbox.network import NetworkPolicy, not_enforced
from benchflow_workers.sandbox.network_egress import EgressOptions
from benchflow_workers.sandbox.network_outlet import Outlet

Attached = Literal["bridge", "none"]
"""Networks of the engine a container is attached to; "none" holds only a loopback."""


class ContainerNetwork:
    """Sets the network of a container.

    Args:
        http: Client of the engine.
        container_id: Full id of the container.
        attached: The network it was created with.
        options: How listed names are reached.
    """

    def __init__(
        self, http: EngineHttp, container_id: str, attached: Attached, options: EgressOptions
    ) -> None:
        self._http = http
        self._id = container_id
        self._attached: Attached = attached
        self._has_none = (
            attached == "none"
        )  # the engine keeps a network of that name attached until it is told
        self._outlet = Outlet(options)
        self._certificate = ""
        self._doors = Doors()
        self._policy: NetworkPolicy | None = NetworkPolicy("public" if attached == "bridge" else "no-network")

    async def set(self, policy: NetworkPolicy) -> str:
        """Change what the container reaches; see `NetworkSwitch`.

        Raises:
            SandboxError: `sandbox.network_not_enforced`; the container then has no network,
                or, where even the bridge could not be pulled, must not be used.
        """
        if policy == self._policy:
            return self._certificate
        # Known again when all is done: a change that failed or was cancelled half way is done anew.
        self._policy = None
        try:
            await asyncio.to_thread(self._outlet.unplug_blocking)
            self._certificate = ""
            await self._attach("bridge" if policy.mode == "public" else "none")
            if policy.mode != "public":
                pid = await self._pid()
                await asyncio.to_thread(self._check_cut, pid)
                if policy.is_filtered:
                    self._certificate = await asyncio.to_thread(
                        self._outlet.plug_in_blocking, policy, pid, lambda: self._check_owner(pid)
                    )
        except EngineError as error:
            raise not_enforced(policy, error.message) from error
        except OSError as error:
            raise not_enforced(policy, error.strerror or str(error)) from error
        self._policy = policy
        return self._certificate

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what was refused since the last time."""
        return self._outlet.log.take()

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen on the container's loopback; see `ListensInside`.

        Raises:
            SandboxError: `sandbox.exec_failed`, `sandbox.lost`.
            EngineError: The engine does not tell the container's process.
        """
        pid = await self._pid()
        try:
            return await asyncio.to_thread(
                self._doors.open_blocking, lambda: self._listener(pid, port), target
            )
        except OSError as error:
            raise SandboxError(
                "sandbox.exec_failed",
                f"The worker cannot listen on port {port} inside container {self._id[:12]}: {error.strerror}.",
                hint="Choose another port, or 0 for any; the worker must be root beside the engine.",
            ) from error

    def _listener(self, pid: int, port: int) -> socket.socket:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check_owner(pid)
            return network_links.listen_in(namespace, port)
        finally:
            os.close(namespace)

    async def close(self) -> None:
        """Close every door, and pull the cable to the gateway for good; safe to call twice."""
        await asyncio.to_thread(self._doors.close_blocking)
        await asyncio.to_thread(self._outlet.close_blocking)

    async def _attach(self, wanted: Attached) -> None:
        if wanted == self._attached:
            return
        if wanted == "none":
            await self._ask("bridge", "disconnect")
        else:
            if self._has_none:
                await self._ask("none", "disconnect")
                self._has_none = False
            await self._ask("bridge", "connect")
        self._attached = wanted

    async def _ask(self, network: str, action: str) -> None:
        body = {"Container": self._id}
        await self._http.call(Request("POST", f"/networks/{network}/{action}", body=body))

    async def _pid(self) -> int:
        found = await self._http.call(Request("GET", f"/containers/{self._id}/json"))
        if not found["State"]["Running"]:
            raise SandboxError(
                "sandbox.lost",
                f"Container {self._id[:12]} is gone: it ended.",
                hint="It may have been removed from outside, or its first process was killed.",
            )
        return int(found["State"]["Pid"])

    def _check_owner(self, pid: int) -> None:
        """Raise OSError unless the process is the container's: an engine elsewhere counts its own."""
        if self._id not in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"):
            raise ProcessLookupError(3, "the engine's processes are not visible to the worker")

    def _check_cut(self, pid: int) -> None:
        """Raise OSError when a route out is left, of a network that somebody else attached."""
        self._check_owner(pid)
        for name in ("route", "ipv6_route"):
            path = Path(f"/proc/{pid}/net/{name}")
            lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
            if any(_leads_out(line.split()) for line in lines):
                raise PermissionError(1, "the container has a network that the worker did not attach")


def _leads_out(fields: list[str]) -> bool:
    """Return whether a line of a routing table, no title, is about another interface than the loopback."""
    return bool(fields) and fields[0] != "Iface" and "lo" not in {fields[0], fields[-1]}
