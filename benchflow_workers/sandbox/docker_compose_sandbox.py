"""The agent's container together with the services beside it, as one sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload
from benchflow_workers.sandbox.docker_compose import ServiceGroup
from benchflow_workers.sandbox.docker_http import EngineError
from benchflow_workers.sandbox.docker_outside import tell_about_names
from benchflow_workers.sandbox.docker_sandbox import DockerSandbox
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.listener import Door, Target
from benchflow_workers.sandbox.network import NetworkPolicy, not_enforced
from benchflow_workers.sandbox.process import Process


class ComposedSandbox:
    """A container with services beside it; closing it removes all of them."""

    def __init__(self, main: DockerSandbox, group: ServiceGroup) -> None:
        self._main = main
        self._group = group

    @property
    def id(self) -> str:
        """The full id of the agent's container."""
        return self._main.id

    @property
    def workdir(self) -> str:
        """The workspace: where commands without a workdir run."""
        return self._main.workdir

    @property
    def services(self) -> Mapping[str, Sandbox]:
        """Each side service by name."""
        return dict(self._group.sandboxes)

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen on the loopback of the agent's container; see `ListensInside`."""
        return await self._main.open_door(port, target)

    async def set_network(self, policy: NetworkPolicy) -> str:
        """Change what every process of every service reaches outside; see `NetworkSwitch`.

        They go on reaching one another by name. The certificate is the agent's container's; a
        side service cannot be told of one.
        """
        switched = self._group.switched(self._main)
        if switched is None:
            raise not_enforced(policy, "the services of this task keep the network they were started with")
        work = [box.set_network(policy) for box in switched.values()]
        done = dict(zip(switched, await asyncio.gather(*work, return_exceptions=True), strict=True))
        for error in done.values():
            if isinstance(error, BaseException):
                raise error
        await asyncio.gather(*(tell_about_names(box, policy) for box in switched.values()))
        return str(done.get(MAIN_SERVICE, ""))

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what the networks of all services refused since the last time; see `KeepsRefusals`."""
        boxes = (self._group.switched(self._main) or {}).items()
        return tuple(
            line if name == MAIN_SERVICE else {**line, "service": name}
            for name, box in boxes
            for line in box.take_refusals()
        )

    async def exec(self, command: Command) -> Completed:
        """Run a command in the agent's container; see the protocol."""
        return await self._main.exec(command)

    def attach(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """Start a program in the agent's container and talk to it; see the protocol."""
        return self._main.attach(command)

    async def kill(self, user: str | int) -> None:
        """Kill every process of a user in the agent's container; see the protocol."""
        await self._main.kill(user)

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Place files in the agent's container; see the protocol."""
        await self._main.put(uploads)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Copy a file or folder out of the agent's container; see the protocol."""
        return await self._main.get(path, target, limit_bytes=limit_bytes)

    async def save_service_logs(self, folder: Path) -> None:
        """Write what each side service printed; see `RunsServices`."""
        try:
            logs = await self._group.logs()
        except (EngineError, TimeoutError) as error:
            raise SandboxError(
                "sandbox.transfer_failed",
                f"The logs of the services of sandbox {self.id[:12]} cannot be read: {error}.",
                hint="See the daemon's log.",
            ) from error
        await asyncio.to_thread(_write, folder, logs)

    async def close(self) -> None:
        """Remove the container and all services, networks and volumes of the trial; see the protocol."""
        await finish(self._close())

    async def _close(self) -> None:
        await self._main.close()
        await self._group.remove()


def _write(folder: Path, logs: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, printed in logs.items():
        (folder / f"{name}.log").write_bytes(printed)
