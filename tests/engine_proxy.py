"""The Docker engine of this host behind a socket of ours, which plays a host with GPUs.

Every request reaches the real engine. What is asked for of GPUs is written down and taken out
of the request before, since an engine without a driver for them would refuse to start.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ENGINE = "/var/run/docker.sock"
_CHUNK = 1 << 16


@dataclass
class EngineProxy:
    """What passed.

    Attributes:
        address: Where workers find the engine.
        created: The description of each container that was made, as it was asked for.
        shared: Devices that were asked for while a container that has them was there.
    """

    address: str
    created: list[dict[str, Any]] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    _held: dict[str, list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        """Take connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.socket(socket.AF_UNIX) as far:
            far.connect(_ENGINE)
            head = _until_blank_line(near)
            method, path, *_ = head.decode("latin-1").split(" ", 2)
            parts = path.partition("?")[0].strip("/").split("/")
            if method == "POST" and parts[1:] == ["containers", "create"]:
                self._create(near, far, head)
            elif method == "DELETE" and parts[1:2] == ["containers"]:
                far.sendall(head)
                answer = _rest(far)
                with self._lock:
                    self._held.pop(parts[2], None)
                near.sendall(answer)
            else:
                far.sendall(head)
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()

    def _create(self, near: socket.socket, far: socket.socket, head: bytes) -> None:
        lines, _, body = head.partition(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in lines.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        while len(body) < length:
            body += near.recv(_CHUNK)
        asked = json.loads(body)
        own = json.loads(body)
        requests = own["HostConfig"].pop("DeviceRequests", [])
        devices = [device for request in requests for device in request["DeviceIDs"]]
        with self._lock:
            self.created.append(asked)
            taken = {device for held in self._held.values() for device in held}
            self.shared += [device for device in devices if device in taken]
        plain = json.dumps(own).encode()
        others = [line for line in lines.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
        far.sendall(b"\r\n".join([*others, b"Content-Length: %d" % len(plain), b"", b""]) + plain)
        answer = _rest(far)
        with self._lock:
            self._held[json.loads(answer.partition(b"\r\n\r\n")[2])["Id"]] = devices
        near.sendall(answer)


@contextmanager
def engine_proxy(path: Path) -> Generator[EngineProxy, None, None]:
    """Serve the engine at a path while the block runs."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        proxy = EngineProxy(f"unix://{path}")
        thread = threading.Thread(target=proxy.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)


def _until_blank_line(source: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = source.recv(_CHUNK)
        if not part:
            raise ConnectionResetError("no request came")
        data += part
    return data


def _rest(source: socket.socket) -> bytes:
    return b"".join(iter(lambda: source.recv(_CHUNK), b""))


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(_CHUNK):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
