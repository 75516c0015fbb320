"""The worker's end of the holder: starts the nursery, asks it for sandboxes, talks to their first process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.holder import wire
from benchflow_workers.sandbox.local.places import wait_for_end

_PACKAGE_ROOT = Path(__file__).parents[3]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from benchflow_workers.sandbox.holder.nursery import main; main(int(sys.argv[2]))"
)
_NURSERY_START_S = 30.0
_DEATH_DEADLINE_S = 10.0


class Channel:
    """One conversation with a holder; usable from any event loop, closed by its owner."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)

    async def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request; descriptors go with its first byte.

        Raises:
            SandboxError: `sandbox.lost` when nobody is there to read it.
        """
        data = wire.encode(message)
        try:
            sent = socket.send_fds(self._socket, [data[: wire.HEADER.size]], list(fds))
            await asyncio.get_running_loop().sock_sendall(self._socket, data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise lost() from error

    async def receive(self) -> dict[str, Any] | None:
        """Return the next answer; None = the holder is gone, or had nothing more to say."""
        header = await self._exactly(wire.HEADER.size)
        if header is None:
            return None
        text = await self._exactly(wire.HEADER.unpack(header)[0])
        return None if text is None else wire.decode(text)

    async def _exactly(self, size_bytes: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size_bytes:
            try:
                part = await loop.sock_recv(self._socket, size_bytes - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data

    def send_blocking(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request from a thread; a holder that is gone shows at the next answer."""
        self._socket.settimeout(None)
        wire.send(self._socket, message, fds)

    def receive_blocking(self, timeout_s: float) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the next answer and its descriptors, for use in a thread.

        Raises:
            TimeoutError: No answer in time.
        """
        self._socket.settimeout(timeout_s)
        try:
            return wire.receive(self._socket)
        except EOFError:
            return None, []

    def close(self) -> None:
        """Close this end; safe to call twice."""
        self._socket.close()


class Holder:
    """The first process of one sandbox.

    Args:
        control: Socket it takes requests from; it ends when this end is closed.
        life: Channel that is closed when its namespaces are gone.
        pidfd: Handle of the process, owned by this object.
        pid: Its number on the host.
    """

    def __init__(self, control: socket.socket, life: Channel, pidfd: int, pid: int) -> None:
        self.pid = pid
        self._control = control
        self._life = life
        self._pidfd = pidfd
        self._lock = threading.Lock()
        self._is_closed = False

    def ask(self, operation: bytes, message: Mapping[str, Any] | None = None) -> Channel:
        """Open a channel for one operation.

        Raises:
            SandboxError: `sandbox.lost` when the process is gone, `sandbox.exec_failed`
                when it does not keep up.
        """
        inline = b"" if message is None else wire.encode(message)[wire.HEADER.size :]
        return open_channel(self._control, operation + inline)

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return not self._is_closed and not wait_for_end(self._pidfd, 0)

    def end(self) -> bool:
        """Kill the process and all it holds, and wait for their end; safe to call twice.

        Returns:
            False when something in it could not be killed in time.
        """
        with self._lock:
            if self._is_closed:
                return True
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._control.close()
            is_over = True
            try:
                self._life.receive_blocking(_DEATH_DEADLINE_S)
            except TimeoutError:
                is_over = False
            self._life.close()
            os.close(self._pidfd)
            self._is_closed = True
            return is_over


class Nursery:
    """The process that makes sandboxes, one for each worker process, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open_channel(self) -> Channel:
        """Open a channel for one new sandbox, starting or restarting the nursery.

        Raises:
            SandboxError: `sandbox.unavailable` when it does not start.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._stop()
            if self._control is None:
                self._start()
            assert self._control is not None
            return open_channel(self._control, b"s")

    def close(self) -> None:
        """End the nursery; sandboxes that run go on. Safe to call twice."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, str(_PACKAGE_ROOT)]
        with theirs, tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            theirs.close()
            self._control = ours
            ours.settimeout(_NURSERY_START_S)
            try:
                is_ready = ours.recv(16) == b"ready"
            except (TimeoutError, ConnectionResetError):
                is_ready = False
            if not is_ready:
                self._stop()
                errors.seek(0)
                raise _no_nursery(errors.read()[-1000:])

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def open_channel(control: socket.socket, datagram: bytes) -> Channel:
    """Send a request's first datagram with the far end of a new channel; return the near end.

    Raises:
        SandboxError: `sandbox.lost` when nobody listens, `sandbox.exec_failed` when the queue is full.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            socket.send_fds(control, [datagram], [theirs.fileno()], socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            ours.close()
            raise SandboxError(
                "sandbox.exec_failed",
                "The first process of the sandbox does not take requests.",
                hint="The host may be out of memory or processors; look at its load.",
            ) from error
        except OSError as error:
            ours.close()
            raise lost() from error
    return Channel(ours)


def lost() -> SandboxError:
    """Return the error of a sandbox that is gone."""
    return SandboxError(
        "sandbox.lost",
        "The local sandbox is gone: it was closed, removed from outside, or its processes were killed.",
        hint="If nobody removed it, look for the kernel's out-of-memory messages on the worker's host.",
    )


def _no_nursery(errors: bytes) -> SandboxError:
    text = errors.decode(errors="replace").strip() or "it said nothing"
    return SandboxError(
        "sandbox.unavailable",
        f"The process that makes local sandboxes did not start: {text}",
        hint="Run `bench doctor`; check that the worker's Python can start itself.",
    )
