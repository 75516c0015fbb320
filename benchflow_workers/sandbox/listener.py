"""A door in a sandbox: a port of its own loopback behind which one server of the worker answers.

What listens inside is a socket that the worker opened in the sandbox's network namespace, so
a sandbox without any network has this one way to the worker and no other. Bytes are passed on
as they are. A gateway that keeps the keys of model providers stands on this.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.network_streams import Acceptor, Ends, closing, connect, end_tasks, exchange

__all__ = [
    "Door",
    "Doors",
    "ListensInside",
    "LoopbackTarget",
    "Target",
    "UnixTarget",
    "listen_inside",
    "reached",
]

LOOPBACK = "127.0.0.1"
"""Where a door listens inside, and where a target of the worker's host is."""

_CONNECTIONS = 256  # at once for one sandbox


@dataclass(frozen=True, slots=True)
class LoopbackTarget:
    """A server on the loopback of the worker's host.

    Attributes:
        port: Its port.
    """

    port: int


@dataclass(frozen=True, slots=True)
class UnixTarget:
    """A server at a socket of the worker's host that has a path.

    Attributes:
        path: The path, absolute.
    """

    path: Path


Target = LoopbackTarget | UnixTarget
"""What can stand behind a door; there is no way to name another host."""


class Door(Protocol):
    """One open door."""

    @property
    def port(self) -> int:
        """The port of the sandbox's loopback."""
        ...

    def close_blocking(self) -> None:
        """Stop listening and end every connection; safe to call twice and after the sandbox is closed."""
        ...


@runtime_checkable
class ListensInside(Protocol):
    """A sandbox in whose network the worker can listen."""

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen on 127.0.0.1 inside and pass every connection on to the target.

        Args:
            port: Port inside; 0 = one that is free.
            target: Where connections go; it need not answer yet, and may come back.

        Returns:
            The open door. It is closed with the sandbox at the latest, and ends with the worker.

        Guarantees: processes of this sandbox reach the target, whatever its network is and
        becomes; those of other sandboxes and hosts do not, on no address. All doors of a sandbox
        share one thread, which ends with the last of them. Where a sandbox has the network of its
        host, which reaches a `LoopbackTarget` by itself, nothing is opened: the door's port is the
        target's.

        Raises:
            SandboxError: `sandbox.exec_failed`: the port is taken, or the worker may not enter the
                sandbox's network; `sandbox.lost`; `task.unsupported`: a `UnixTarget` where the network is
                the host's, whose every process would reach it.
        """
        ...


@contextlib.asynccontextmanager
async def listen_inside(sandbox: object, port: int, target: Target) -> AsyncGenerator[str, None]:
    """Open a door for as long as the block runs; yields its address inside, `127.0.0.1:PORT`.

    Args:
        sandbox: Any sandbox; see `ListensInside` for what is promised.
        port: Port inside; 0 = one that is free.
        target: Where connections go.

    Raises:
        SandboxError: As `ListensInside.open_door`; `task.unsupported`: this kind has no doors.
    """
    door = await open_door(sandbox, port, target)
    try:
        yield f"{LOOPBACK}:{door.port}"
    finally:
        await asyncio.shield(asyncio.to_thread(door.close_blocking))


async def open_door(sandbox: object, port: int, target: Target) -> Door:
    """Open a door in a sandbox that must be able to; see `ListensInside`."""
    if not isinstance(sandbox, ListensInside):
        raise SandboxError(
            "task.unsupported",
            "The worker cannot listen inside this kind of sandbox, so nothing in it reaches the worker.",
            hint="Choose another --sandbox.",
        )
    return await sandbox.open_door(port, target)


@dataclass(frozen=True, slots=True)
class HostDoor:
    """The door of a sandbox that has the network of its host: the target itself."""

    port: int

    @classmethod
    def of(cls, target: Target) -> HostDoor:
        """Return the door to a target that the host's network reaches.

        Raises:
            SandboxError: `task.unsupported`: it would have to be opened to the whole host.
        """
        if isinstance(target, UnixTarget):
            raise SandboxError(
                "task.unsupported",
                f"A door to {target.path} cannot be opened in a sandbox that shares the network of its host: every "
                "process of the host would reach it.",
                hint="Let the server listen on a port of the loopback.",
            )
        return cls(target.port)

    def close_blocking(self) -> None:
        """Do nothing: nothing was opened."""


class Doors:
    """All doors of one sandbox, and the one thread that serves them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[_Door] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def open_blocking(self, make_listener: Callable[[], socket.socket], target: Target) -> Door:
        """Serve a socket that listens inside.

        Args:
            make_listener: Opens it; not called once the sandbox is closed.
            target: Where connections go.

        Raises:
            SandboxError: `sandbox.lost`: the sandbox was closed; what opening raises.
        """
        with self._lock:
            if self._is_closed:
                raise SandboxError(
                    "sandbox.lost", "No door can be opened: the sandbox was closed.", hint="Open it earlier."
                )
            listener = make_listener()
            listener.setblocking(False)
            door = _Door(self, listener, target)
            asyncio.run_coroutine_threadsafe(door.serve(), self._running_loop())
            self._open.add(door)
            return door

    def close_one_blocking(self, door: _Door) -> None:
        """Close a door and, with the last one, end the thread; safe to call twice."""
        with self._lock:
            if door not in self._open or self._loop is None:
                return
            self._open.remove(door)
            asyncio.run_coroutine_threadsafe(door.end(), self._loop).result()
            if not self._open:
                self._end_thread(self._loop)

    def close_blocking(self) -> None:
        """Close every door for good; safe to call twice."""
        with self._lock:
            self._is_closed = True
            doors = tuple(self._open)
        for door in doors:
            self.close_one_blocking(door)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="bf-doors", daemon=True)
            self._thread.start()
        return self._loop

    def _end_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop = self._thread = None


class _Door:
    def __init__(self, doors: Doors, listener: socket.socket, target: Target) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._doors = doors
        self._target = target
        self._serving: asyncio.Task[None] | None = None

    def close_blocking(self) -> None:
        """Stop listening and end every connection."""
        self._doors.close_one_blocking(self)

    async def serve(self) -> None:
        """Take connections until `end` is called, in the loop of all doors."""
        self._serving = asyncio.current_task()
        acceptor = Acceptor(_CONNECTIONS)
        try:
            await acceptor.accept(self._listener, self._pass_on)
        finally:
            self._listener.close()
            await acceptor.end()

    async def end(self) -> None:
        """Stop listening and end every connection; called in the same loop, after `serve`."""
        if self._serving is not None:
            await end_tasks(self._serving)

    async def _pass_on(self, inside: Ends) -> None:
        async with closing(await reached(self._target)) as server:
            await exchange(inside, server)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def reached(target: Target) -> Ends:
    """Connect to what stands behind a door.

    Raises:
        OSError: It does not answer.
    """
    if isinstance(target, UnixTarget):
        return Ends(*await asyncio.open_unix_connection(target.path))
    return await connect((LOOPBACK,), target.port)
