"""Waiting for the services of a task: started, healthy, or ended, as the engine sees them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request

LOG_LIMIT_BYTES: Final = 4 << 20
"""Bytes of a service's output that are kept, from its end."""

_TAIL_BYTES: Final = 1500
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 0.5
_LOG_TIMEOUT_S: Final = 60.0


class Starter:
    """Knows the containers of a trial's services and waits for what they come to.

    Args:
        http: Client of the engine.
        spec: What the rollout asks for; `services` is set.
    """

    def __init__(self, http: EngineHttp, spec: SandboxSpec) -> None:
        self._http = http
        self._spec = spec
        self._ids: dict[str, str] = {}
        self._timeout_s = max(spec.start_timeout_s, spec.build_timeout_s)

    def add(self, name: str, container_id: str) -> None:
        """Tell the container of a service."""
        self._ids[name] = container_id

    async def until_startable(self, name: str) -> None:
        """Wait until a service may start.

        Raises:
            SandboxError: `sandbox.start_failed`: what it waits for cannot come any more, or did not in time.
        """
        services = self._spec.services
        depends = {} if services is None else services.compose.services[name].depends_on
        for other, dependency in depends.items():
            if other in self._ids:
                await self._until(other, dependency.condition)

    async def until_ready(self) -> None:
        """Wait until every side service with a check is healthy; one without runs, or has done its work.

        Raises:
            SandboxError: `sandbox.start_failed`.
        """
        for name in self._ids:
            await self._until(name, "ready")

    async def _until(self, name: str, condition: str) -> None:
        delay_s = _FIRST_WAIT_S
        try:
            async with asyncio.timeout(self._timeout_s):
                while not await self._has_come(name, condition):
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, _LONGEST_WAIT_S)
        except TimeoutError as error:
            raise await self._failed(name, f"was not ready after {self._timeout_s:.0f} s") from error

    async def _has_come(self, name: str, condition: str) -> bool:
        async with engine_errors(self._spec):
            found = await self._http.call(Request("GET", f"/containers/{self._ids[name]}/json"))
        state: dict[str, Any] = found["State"]
        health = (state.get("Health") or {}).get("Status", "none")
        has_ended = state["Status"] in {"exited", "dead"}
        if has_ended and state["ExitCode"] != 0:
            raise await self._failed(name, f"ended with exit code {state['ExitCode']}")
        if condition == "service_completed_successfully":
            return has_ended
        if health == "unhealthy":
            raise await self._failed(name, f"is unhealthy{_last_check(state)}")
        if condition == "service_healthy":
            if has_ended or health == "none":
                reason = "ended before it was healthy" if has_ended else "has no healthcheck"
                raise await self._failed(name, reason)
            return bool(health == "healthy")
        return condition == "service_started" or has_ended or health in {"none", "healthy"}

    async def _failed(self, name: str, reason: str) -> SandboxError:
        printed = b""
        if name != MAIN_SERVICE:
            async with engine_errors(self._spec):
                printed = await read_logs(self._http, self._ids[name])
        tail = "\n".join(
            f"  | {line}" for line in printed[-_TAIL_BYTES:].decode("utf-8", "replace").splitlines()
        )
        return SandboxError(
            "sandbox.start_failed",
            f"Service {name!r} of sandbox {self._spec.name!r} {reason}." + (f"\n{tail}" if tail else ""),
            hint="Start its image by hand; see its command and its healthcheck in environment/docker-compose.yaml.",
        )


def _last_check(state: dict[str, Any]) -> str:
    """Return what the last check printed."""
    log = state["Health"].get("Log") or [{}]
    printed = str(log[-1].get("Output", "")).strip()
    return f"; its last check said: {printed[-300:]}" if printed else ""


async def read_logs(http: EngineHttp, container_id: str) -> bytes:
    """Return what a container printed, both streams in order, its end where it is long."""
    query = {"stdout": "1", "stderr": "1"}
    kept = bytearray()
    request = Request("GET", f"/containers/{container_id}/logs", query=query)
    async with asyncio.timeout(_LOG_TIMEOUT_S), http.stream(request) as answer:
        async for part in answer.chunks():
            kept += part
    return _without_headers(bytes(kept))[-LOG_LIMIT_BYTES:]


def _without_headers(framed: bytes) -> bytes:
    """Return the output in a framed stream: before each part stand its stream and its length."""
    parts, at = [], 0
    while at + 8 <= len(framed):
        (size,) = struct.unpack(">I", framed[at + 4 : at + 8])
        parts.append(framed[at + 8 : at + 8 + size])
        at += 8 + size
    return b"".join(parts)


@asynccontextmanager
async def engine_errors(spec: SandboxSpec) -> AsyncGenerator[None, None]:
    """Turn the engine's refusals into `sandbox.start_failed`."""
    try:
        yield
    except EngineError as error:
        raise SandboxError(
            "sandbox.start_failed",
            f"The services of sandbox {spec.name!r} did not start: {error.message}.",
            hint="See environment/docker-compose.yaml of the task, and the daemon's log.",
        ) from error
    except TimeoutError as error:
        raise SandboxError(
            "sandbox.start_failed",
            f"The services of sandbox {spec.name!r} did not start: the engine did not answer in time.",
            hint="The host may be overloaded: lower the number of trials at once.",
        ) from error
