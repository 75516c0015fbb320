"""Brokers that a test may hurt: a Redis that is killed or frozen, a link that goes dumb, a RabbitMQ."""

from __future__ import annotations

import contextlib
import secrets
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

from benchflow_client.embedded.server import find_server
from tests.stations import until

START_S = 20.0
"""Seconds a Redis may take to answer, on a busy machine."""

_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
appendonly yes
appendfsync always
save ""
{more}
"""


class PrivateRedis:
    """A Redis of one test, which keeps its port, its password and its data while it is down.

    Args:
        folder: For its data and its log.
        more: More lines of its configuration.
    """

    def __init__(self, folder: Path, *, more: str = "") -> None:
        folder.mkdir()
        self._folder = folder
        self._port = free_port()
        self._password = secrets.token_hex(8)
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def client(self) -> Any:
        """Return a client that gives up at once."""
        return redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2)

    def start(self) -> None:
        """Start it, with the data of before, and wait until it answers."""
        config = _CONFIG.format(
            port=self._port, password=self._password, folder=self._folder, more=self._more
        )
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_server()), "-"], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self._process.stdin is not None
        self._process.stdin.write(config.encode())
        self._process.stdin.close()
        until(self._answers, seconds=START_S)

    def kill(self) -> None:
        """End it without a warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=10)

    def freeze(self) -> None:
        """Let it hold its connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def reset_connections(self) -> int:
        """Close every connection to it but the one that asks, and return how many."""
        client = self.client
        return int(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")) + int(
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        )

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


@contextmanager
def private_redis(folder: Path, *, more: str = "") -> Generator[PrivateRedis, None, None]:
    """Start a Redis and end it afterwards, in whatever state it is."""
    server = PrivateRedis(folder, more=more)
    try:
        yield server
    finally:
        server.thaw()
        server.kill()


class Link:
    """A TCP link to a server that can be made to swallow every byte without being closed.

    Args:
        url: The server's URL; `url` of the link is the same, by way of the link.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{port}")
        self._dumb: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def go_dumb(self) -> int:
        """Swallow what comes on the links there are, from both sides; new ones work. Returns how many."""
        with self._lock:
            self._dumb |= self._open
            return len(self._open) // 2

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            # A thread that waits for an end sees it go; closing alone would not wake it.
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            with self._lock:
                self._open |= {near, far}
            with contextlib.suppress(OSError, ValueError):
                self._exchange({near: far, far: near})
            with self._lock:
                self._open -= {near, far}

    def _exchange(self, other: dict[socket.socket, socket.socket]) -> None:
        while True:
            for source in select.select(list(other), [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source not in self._dumb:
                    other[source].sendall(data)


@contextmanager
def link_to(url: str) -> Generator[Link, None, None]:
    """Put a link before a server, and take it away afterwards."""
    link = Link(url)
    try:
        yield link
    finally:
        link.close()


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
