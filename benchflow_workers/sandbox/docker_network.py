"""The network of one container while it runs: a bridge, nothing, or a cable to the worker's gateway.

The container keeps no right over any of them: cables are plugged and pulled by the engine and
by the worker, from outside, and root inside lacks the capability to change a route.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox import network_links
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request
from benchflow_workers.sandbox.listener import Door, Doors, Target
from benchflow_workers.sandbox.network import NetworkPolicy, not_enforced
from benchflow_workers.sandbox.network_egress import EgressOptions
from benchflow_workers.sandbox.network_outlet import Outlet

NO_NETWORK = "none"
"""The engine's network that holds only a loopback."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a container is attached.

    Attributes:
        outside: Network of the engine that leads outside; "" = the container never gets one.
        is_outside: Whether the container starts on it.
        inner: Networks of its own, which lead nowhere; without any the engine's `none` stands in.
        may_end: It is a service, which may have done its work.
    """

    outside: str = "bridge"
    is_outside: bool = True
    inner: int = 0
    may_end: bool = False


class ContainerNetwork:
    """Sets the network of a container.

    Args:
        http: Client of the engine.
        container_id: Full id of the container.
        wiring: How it is attached when it starts.
        options: How listed names are reached.
    """

    def __init__(self, http: EngineHttp, container_id: str, wiring: Wiring, options: EgressOptions) -> None:
        self._http = http
        self._id = container_id
        self._wiring = wiring
        self._is_outside = wiring.is_outside
        # The engine keeps a network of that name attached until it is told.
        self._has_none = not wiring.is_outside and not wiring.inner
        self._outlet = Outlet(options)
        self._certificate = ""
        self._doors = Doors()
        at_start = NetworkPolicy("public" if wiring.is_outside else "no-network")
        # Networks of its own may name a way out, which only the first change takes away.
        self._policy: NetworkPolicy | None = None if wiring.inner else at_start

    async def set(self, policy: NetworkPolicy) -> str:
        """Change what the container reaches; see `NetworkSwitch`.

        Raises:
            SandboxError: `sandbox.network_not_enforced`; the container then has no network,
                or, where even the bridge could not be pulled, must not be used.
        """
        if policy == self._policy:
            return self._certificate
        if not self._wiring.outside:
            raise not_enforced(policy, "this container keeps the network it was opened with")
        # Known again when all is done: a change that failed or was cancelled half way is done anew.
        self._policy = None
        try:
            await asyncio.to_thread(self._outlet.unplug_blocking)
            self._certificate = ""
            await self._attach(is_outside=policy.mode == "public")
            if policy.mode != "public" and (pid := await self._pid()) is not None:
                await asyncio.to_thread(self._cut, pid)
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
        if pid is None:
            raise self._lost()
        try:
            return await asyncio.to_thread(
                self._doors.open_blocking, partial(self._listener, pid, port), target
            )
        except OSError as error:
            raise SandboxError(
                "sandbox.exec_failed",
                f"The worker cannot listen on port {port} inside container {self._id[:12]}: {error.strerror}.",
                hint="Choose another port, or 0 for any; the worker must be root beside the engine.",
            ) from error

    def _listener(self, pid: int, port: int) -> socket.socket:
        with self._namespace(pid) as namespace:
            return network_links.listen_in(namespace, port)

    @contextlib.contextmanager
    def _namespace(self, pid: int) -> Generator[int, None, None]:
        """Yield a descriptor of the network namespace of the container's process."""
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._check_owner(pid)
            yield namespace
        finally:
            os.close(namespace)

    async def close(self) -> None:
        """Close every door, and pull the cable to the gateway for good; safe to call twice."""
        await asyncio.to_thread(self._doors.close_blocking)
        await asyncio.to_thread(self._outlet.close_blocking)

    async def _attach(self, *, is_outside: bool) -> None:
        if is_outside == self._is_outside:
            return
        if is_outside and self._has_none:
            await self._ask(NO_NETWORK, "disconnect")
            self._has_none = False
        await self._ask(self._wiring.outside, "connect" if is_outside else "disconnect")
        self._is_outside = is_outside

    async def _ask(self, network: str, action: str) -> None:
        body = {"Container": self._id}
        await self._http.call(Request("POST", f"/networks/{network}/{action}", body=body))

    async def _pid(self) -> int | None:
        """Return its first process; None = it is a service that ended, or waits to be started again.

        Raises:
            SandboxError: `sandbox.lost`: it has no other work than to run, and does not.
        """
        found = await self._http.call(Request("GET", f"/containers/{self._id}/json"))
        state = found["State"]
        if state["Running"] and not state["Restarting"]:
            return int(state["Pid"])
        if self._wiring.may_end:
            return None
        raise self._lost()

    def _lost(self) -> SandboxError:
        return SandboxError(
            "sandbox.lost",
            f"Container {self._id[:12]} is gone: it ended.",
            hint="It may have been removed from outside, or its first process was killed.",
        )

    def _check_owner(self, pid: int) -> None:
        """Raise OSError unless the process is the container's: an engine elsewhere counts its own."""
        if self._id not in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"):
            raise ProcessLookupError(3, "the engine's processes are not visible to the worker")

    def _cut(self, pid: int) -> None:
        """Remove what is left of a way out; raise OSError when there is one that somebody else made."""
        if self._wiring.inner:
            # Engines name a router of networks that lead nowhere; nobody has its address.
            with self._namespace(pid) as namespace:
                network_links.drop_default_routes(namespace)
        self._check_owner(pid)
        routes = [
            *_routes(pid, "route", _Route.of_version_4),
            *_routes(pid, "ipv6_route", _Route.of_version_6),
        ]
        if (
            any(route.leads_out for route in routes)
            or len({route.interface for route in routes}) > self._wiring.inner
        ):
            raise PermissionError(1, "the container has a network that the worker did not attach")


@dataclass(frozen=True, slots=True)
class _Route:
    interface: str
    leads_out: bool  # something else than the other ends of the container's own networks is reached by it

    @classmethod
    def of_version_4(cls, fields: list[str]) -> _Route:
        return cls(fields[0], int(fields[1], 16) == 0 or int(fields[2], 16) != 0)

    @classmethod
    def of_version_6(cls, fields: list[str]) -> _Route:
        return cls(
            fields[9], leads_out=True
        )  # the host's end of a bridge has an address of this version by itself


def _routes(pid: int, table: str, read: Callable[[list[str]], _Route]) -> list[_Route]:
    """Return the routes in a table of a process's network that are not the loopback's."""
    path = Path(f"/proc/{pid}/net/{table}")
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    found = [read(line.split()) for line in lines if line.strip() and not line.startswith("Iface")]
    return [route for route in found if route.interface != "lo"]
