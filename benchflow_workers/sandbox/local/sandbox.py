"""A running local sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.archive import pack, sandbox_path, unpack
from benchflow_workers.sandbox.base import Command, Completed, Upload
from benchflow_workers.sandbox.listener import Door, Doors, HostDoor, Target
from benchflow_workers.sandbox.local import execution
from benchflow_workers.sandbox.local.execution import Surroundings
from benchflow_workers.sandbox.local.holder_client import Channel, Holder, lost
from benchflow_workers.sandbox.local.network import LocalNetwork
from benchflow_workers.sandbox.local.places import Places, Record
from benchflow_workers.sandbox.local.process import LocalProcess, attach
from benchflow_workers.sandbox.network import NetworkPolicy, not_enforced

_TRANSFER_S = 600.0  # longest a transfer may be silent


@dataclass(frozen=True, slots=True)
class Made:
    """What a launch left for the sandbox to own."""

    record: Record
    holder: Holder
    places: Places
    around: Surroundings
    notes: tuple[str, ...]
    network: LocalNetwork | None = None
    has_own_network: bool = False


class LocalSandbox:
    """A sandbox whose processes are children of a holder on this host.

    Attributes:
        notes: What differs from the same task in Docker, for the record of the trial.
    """

    def __init__(self, made: Made) -> None:
        self.notes = made.notes
        self._made = made
        self._doors = Doors()
        self._closing = threading.Lock()
        self._is_closed = False

    @property
    def id(self) -> str:
        """Name of its folder on this host."""
        return self._made.record.id

    @property
    def workdir(self) -> str:
        """Where commands without a workdir run."""
        return self._made.around.workdir

    @property
    def pid(self) -> int:
        """Its first process as seen from the host."""
        return self._made.holder.pid

    async def exec(self, command: Command) -> Completed:
        """Run a command and wait for its end; see the contract."""
        return await execution.run(self._made.holder, command, self._made.around)

    def attach(self, command: Command) -> AbstractAsyncContextManager[LocalProcess]:
        """Start a program and talk to it; see the contract."""
        return attach(self._made.holder, command, self._made.around)

    async def kill(self, user: str | int) -> None:
        """Kill every process of a user; with a single user, every process of a command."""
        await execution.kill(self._made.holder, {"user": str(user), "has_users": self._made.around.has_users})

    async def set_network(self, policy: NetworkPolicy) -> str:
        """Change what every process reaches, from outside; see `NetworkSwitch`."""
        self._check_alive()
        if self._made.network is None:
            raise not_enforced(policy, "this sandbox keeps the network it was opened with")
        return await self._made.network.set(policy)

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what its network refused since the last time; see `KeepsRefusals`."""
        return () if self._made.network is None else self._made.network.take_refusals()

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Place files in one transfer; nothing a sandbox links leads out of it."""
        self._check_alive()
        await asyncio.to_thread(self._put, uploads)

    def _put(self, uploads: Sequence[Upload]) -> None:
        with pack(uploads) as archive:
            fd = archive.fileno()
            os.lseek(fd, 0, os.SEEK_SET)
            channel = self._made.holder.ask(b"p")
            with contextlib.closing(channel):
                channel.send_blocking({"has_users": self._made.around.has_users}, [fd])
                self._expect_done(channel)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Copy a file or folder out of the sandbox; see the contract."""
        self._check_alive()
        return await asyncio.to_thread(self._get, sandbox_path(path), target, limit_bytes)

    def _get(self, path: str, target: Path, limit_bytes: int) -> bool:
        channel = self._made.holder.ask(b"g")
        with contextlib.closing(channel):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            with os.fdopen(reader, "rb") as stream:
                try:
                    channel.send_blocking({"path": path}, [writer])
                finally:
                    os.close(writer)
                try:
                    is_found = unpack(stream, target, limit_bytes=limit_bytes)
                except SandboxError:
                    self._check_alive()
                    raise
            self._expect_done(channel)
            return is_found

    def _expect_done(self, channel: Channel) -> None:
        try:
            answer, _ = channel.receive_blocking(_TRANSFER_S)
        except TimeoutError:
            answer = {"error": f"no answer in {_TRANSFER_S:.0f} s"}
        if answer is not None and "done" in answer:
            return
        self._check_alive()
        reason = (answer or {}).get("error") or "the process that moves them ended early"
        raise SandboxError(
            "sandbox.transfer_failed",
            f"Files could not be moved in local sandbox {self.id}: {reason}.",
            hint="Check the space left in the worker's state folder and the paths of the task.",
        )

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen on the sandbox's own loopback; see `ListensInside`."""
        if not self._made.has_own_network:
            return HostDoor.of(target)
        return await asyncio.to_thread(self._doors.open_blocking, lambda: self._listen(port), target)

    async def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on 127.0.0.1 of the sandbox's own network.

        A server of the worker on it is reachable from inside, also without a
        network. Where the sandbox shares the host's network it is the host's port.

        Raises:
            SandboxError: `sandbox.exec_failed` when the port is taken, `sandbox.lost`.
        """
        return await asyncio.to_thread(self._listen, port)

    def _listen(self, port: int) -> socket.socket:
        with contextlib.closing(self._made.holder.ask(b"l")) as channel:
            channel.send_blocking({"port": port})
            answer, fds = channel.receive_blocking(_TRANSFER_S)
        if fds:
            return socket.socket(fileno=fds[0])
        self._check_alive()
        raise SandboxError(
            "sandbox.exec_failed",
            f"Port {port} cannot be opened in local sandbox {self.id}: {_reason(answer)}.",
            hint="Choose another port; with network public all local sandboxes share the host's ports.",
        )

    def _check_alive(self) -> None:
        if not self._made.holder.is_alive():
            raise lost()

    async def close(self) -> None:
        """Kill all that runs and remove all it holds; safe to call twice and while commands run."""
        await asyncio.shield(asyncio.to_thread(self.close_blocking))

    def stop_blocking(self) -> None:
        """Kill all that runs and keep the files, whose overlays are then no longer mounted.

        Raises:
            SandboxError: `sandbox.exec_failed` when a process cannot be killed.
        """
        self._doors.close_blocking()
        if self._made.network is not None:
            self._made.network.close_blocking()
        if not self._made.holder.end():
            raise SandboxError(
                "sandbox.exec_failed",
                f"Local sandbox {self.id} still has processes after SIGKILL.",
                hint="They wait in the kernel; `bench sandboxes audit` lists what is left.",
            )

    def close_blocking(self) -> None:
        """Do what `close` does, for a caller without an event loop."""
        with self._closing:
            if self._is_closed:
                return
            self.stop_blocking()
            self._made.places.remove(self.id)
            self._is_closed = True


def _reason(answer: dict[str, Any] | None) -> str:
    return str((answer or {}).get("error", "no answer"))
