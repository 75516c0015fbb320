"""A single-threaded loop that forks one process for each request and tells how it ended.

The nursery and the first process of every sandbox are both such a server; they
differ in the operations they offer.

Lines marked "no cover" run in processes no coverage tool can follow into; the contract tests run them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchflow_workers.sandbox.holder import wire

Operation = Callable[[socket.socket], None]
"""Runs in a forked process: reads its request from the channel, answers there."""

Inline = Callable[["Server", dict[str, Any]], dict[str, Any]]
"""Runs in the server itself, for what must work when no process can be forked; returns the answer."""


class Server:
    """Serves a control socket until its other end is closed."""

    def __init__(
        self,
        control: socket.socket,
        operations: Mapping[bytes, Operation],
        inline: Mapping[bytes, Inline] | None = None,
    ) -> None:
        self._control = control
        self._operations = operations
        self._inline = inline or {}
        self._channels: dict[int, socket.socket] = {}
        self._exempt: set[int] = set()

    @property
    def own_pids(self) -> frozenset[int]:
        """Processes of the server's own work (not of commands) that no kill may touch."""
        return frozenset(self._exempt)

    def serve(self) -> None:
        """Answer requests; returns when the worker closed its end or is gone."""
        wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        self._wake_fds = (wake, wake_writer)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self.reap()
            if self._control.fileno() in ready:
                try:
                    data, fds = wire.receive_datagram(self._control)
                except EOFError:
                    return
                self._accept(data, socket.socket(fileno=fds[0]))

    def reap(self) -> None:
        """Collect ended children, orphans included, and tell each channel its wait status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._exempt.discard(pid)
            channel = self._channels.pop(pid, None)
            if channel is not None:
                _answer(channel, {"status": os.waitstatus_to_exitcode(status)})

    def _accept(self, data: bytes, channel: socket.socket) -> None:
        name = data[:1]
        if name in self._inline:
            _answer(channel, self._inline[name](self, wire.decode(data[1:])))
            return
        try:
            pid = os.fork()
        except OSError as error:
            _answer(
                channel,
                {"error": f"no process could be made: {error.strerror}", "errno": error.errno, "exit": 126},
            )
            return
        if pid == 0:
            self._run(self._operations[name], channel)
        self._channels[pid] = channel
        if name != b"e":
            self._exempt.add(pid)

    def _run(self, operation: Operation, channel: socket.socket) -> None:  # pragma: no cover
        """Run an operation in the forked process, which ends here whatever happens."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            wire.close_all((*self._wake_fds, self._control.fileno()))
            for other in self._channels.values():
                other.close()
            operation(channel)
        except OSError as error:
            wire.send(channel, {"error": str(error), "errno": error.errno or errno.EIO, "exit": 126})
        except EOFError:
            os._exit(1)
        finally:
            # Also on errors nobody expects: a second server must never run on.
            sys.stdout = sys.stderr = None
            os._exit(1 if sys.exc_info()[0] else 0)


def _answer(channel: socket.socket, message: Mapping[str, Any]) -> None:
    # A worker that reads no answers must not be able to stop the server.
    channel.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        wire.send(channel, message)
    channel.close()
