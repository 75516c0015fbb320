"""A small asyncio client of the Docker Engine API: calls, streams and hijacked connections.

Every request has a deadline and ends at once when it is cancelled, which a
blocking client in a thread cannot promise; an abandoned archive download would
hold the engine's lock on the container until it is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import quote, urlencode

from benchflow_client.errors import SandboxError

CALL_TIMEOUT_S = 60.0
"""Seconds for one plain call; a loaded engine needs 7 s for the slowest (measured, 16 starts at once)."""

_BUFFER_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18
_MESSAGE_BYTES = 1 << 16  # most that is read of an error's body


class EngineError(Exception):
    """The engine answered a request with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the engine listens: a unix socket, or host and port."""

    unix_path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix://{self.unix_path}" if self.unix_path else f"tcp://{self.host}:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection.

        Raises:
            SandboxError: `sandbox.unavailable` when nobody listens there.
        """
        try:
            if self.unix_path:
                return await asyncio.open_unix_connection(self.unix_path, limit=_BUFFER_BYTES)
            return await asyncio.open_connection(self.host, self.port, limit=_BUFFER_BYTES)
        except OSError as error:
            raise SandboxError(
                "sandbox.unavailable",
                f"No Docker daemon answers at {self}: {error.strerror or error}.",
                hint="Start it, set DOCKER_HOST, or add the worker's user to the group 'docker'.",
            ) from error


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the engine; `body` is JSON, raw bytes or a file at its start."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | IO[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (names in lower case) and the body still to be read."""

    status: int
    headers: Mapping[str, str]
    reader: asyncio.StreamReader

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self.reader.readline()).split(b";")[0] or b"0", 16):
                while size:
                    size -= len(part := await self._part(size))
                    yield part
                await self.reader.readexactly(2)
            return
        left = int(self.headers.get("content-length", "-1"))
        while left and (part := await self.reader.read(_CHUNK_BYTES)):
            left -= len(part)
            yield part

    async def _part(self, size: int) -> bytes:
        part = await self.reader.read(min(size, _CHUNK_BYTES))
        if not part:
            raise ConnectionResetError("the engine closed the connection within a chunk")
        return part

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([part async for part in self.chunks()])


class EngineHttp:
    """Requests to one engine, each on a connection of its own.

    Safe to share between event loops and threads: it holds no connection.
    """

    def __init__(self, endpoint: Endpoint, api_version: str) -> None:
        self.endpoint = endpoint
        self._prefix = f"/v{api_version}" if api_version else ""

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[Answer, None]:
        """Send a request and yield the answer with its body unread; the caller sets the deadline.

        Raises:
            EngineError: The status is 400 or above.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached or hangs up.
        """
        reader, writer = await self.endpoint.connect()
        try:
            yield await self._exchange(request, reader, writer, upgrade="close")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise SandboxError(
                "sandbox.unavailable",
                f"The Docker daemon at {self.endpoint} closed the connection during {request.method} {request.path}.",
                hint="See the daemon's log; it may have been restarted.",
            ) from error
        finally:
            writer.close()

    async def call(self, request: Request, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Send a request and return the answer's JSON, None for an empty body.

        Raises:
            EngineError: The status is 400 or above.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached or does not answer in time.
        """
        try:
            async with asyncio.timeout(timeout_s), self.stream(request) as answer:
                body = await answer.read()
        except TimeoutError as error:
            raise SandboxError(
                "sandbox.unavailable",
                f"The Docker daemon at {self.endpoint} did not answer {request.method} {request.path} in {timeout_s:.0f} s.",
                hint="The host may be overloaded: lower the number of trials at once.",
            ) from error
        return json.loads(body) if body.strip() else None

    async def hijack(self, request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request that turns the connection into a raw two-way stream, and return its ends.

        Raises:
            EngineError: The status is 400 or above.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached or hangs up.
        """
        reader, writer = await self.endpoint.connect()
        try:
            await self._exchange(request, reader, writer, upgrade="Upgrade\r\nUpgrade: tcp")
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise SandboxError(
                "sandbox.unavailable",
                f"The Docker daemon at {self.endpoint} closed the connection during {request.path}.",
                hint="See the daemon's log; it may have been restarted.",
            ) from error
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _exchange(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upgrade: str
    ) -> Answer:
        # An engine that refuses a body early hangs up, after saying why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await _send(self._prefix, request, writer, upgrade=upgrade)
        status, headers = await _read_head(reader)
        answer = Answer(status, headers, reader)
        if status >= 400:
            raise EngineError(status, await _error_message(answer))
        return answer


async def _send(prefix: str, request: Request, writer: asyncio.StreamWriter, *, upgrade: str) -> None:
    query = f"?{urlencode(request.query)}" if request.query else ""
    headers = {"Host": "docker", "Connection": upgrade, **request.headers}
    content: bytes | IO[bytes] = b""
    if isinstance(request.body, Mapping):
        content = json.dumps(request.body).encode()
        headers["Content-Type"] = "application/json"
    elif request.body is not None:
        content = request.body
        headers.setdefault("Content-Type", "application/x-tar")
    if request.method != "GET":
        headers["Content-Length"] = str(_size(content))
    path = quote(request.path, safe="/:@")  # names of images come from task files
    lines = [f"{request.method} {prefix}{path}{query} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    if isinstance(content, bytes):
        writer.write(content)
    else:
        while part := content.read(_CHUNK_BYTES):
            writer.write(part)
            await writer.drain()
    await writer.drain()


def _size(content: bytes | IO[bytes]) -> int:
    if isinstance(content, bytes):
        return len(content)
    size = content.seek(0, 2)
    content.seek(0)
    return size


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(first.split()[1]), headers


async def _error_message(answer: Answer) -> str:
    body = b""
    async for part in answer.chunks():
        body += part
        if len(body) > _MESSAGE_BYTES:
            break
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
