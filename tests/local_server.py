"""Servers of this host that stand behind a door: on a port of the loopback, or at a socket with a path."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class LocalServer:
    """A running server.

    Attributes:
        port: Where it answers each request with its path; 0 = it has a path instead.
        silent_port: Where it takes connections and says nothing.
        asked: Paths it was asked for.
        held: Connections it said nothing on.
    """

    port: int = 0
    silent_port: int = 0
    asked: list[str] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            path = stream.readline().decode().split(" ")[1]
            while stream.readline().strip():
                pass
            self.asked.append(path)
            stream.write(f"HTTP/1.0 200 OK\r\n\r\nanswer to {path}\n".encode())


@contextmanager
def loopback_server() -> Generator[LocalServer, None, None]:
    """Serve on two ports of 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as talking, socket.create_server(("127.0.0.1", 0)) as silent:
        server = LocalServer(talking.getsockname()[1], silent.getsockname()[1])
        with _taking(talking, server.answer), _taking(silent, server.held.append):
            yield server
        for connection in server.held:
            connection.close()


@contextmanager
def unix_server(path: Path) -> Generator[LocalServer, None, None]:
    """Serve at a path."""
    server = LocalServer()
    with socket.socket(socket.AF_UNIX) as talking:
        talking.bind(str(path))
        talking.listen()
        with _taking(talking, server.answer):
            yield server


@contextmanager
def _taking(listener: socket.socket, serve: Callable[[socket.socket], object]) -> Generator[None, None, None]:
    """Serve the connections of a socket one after the other."""

    def take() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            serve(connection)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
