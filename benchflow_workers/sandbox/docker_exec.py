"""One command in a container: created, its streams read with bounded memory, its end found.

Three calls to the engine: create, start (hijacked) and inspect. Deadlines and
killing are the caller's, who holds the tag every process of the command carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import uuid
from collections.abc import Callable, Iterable

from benchflow_workers.sandbox.base import Command
from benchflow_workers.sandbox.docker_http import CALL_TIMEOUT_S, EngineHttp, Request

TAG_VARIABLE = "BF_EXEC_ID"
"""Variable by which the processes of one command are found again."""

Sink = Callable[[bytes], None]
"""Takes the next bytes of a stream."""

_POLL_S = 1.0  # first look whether a command ended whose pipe is still open; shorter commands cost no look
_GRACE_S = 0.5  # after the end of a command, for output still on its way
_DEATH_S = 10.0  # for the engine to notice the end of a killed command, on a loaded host
_CHUNK_BYTES = 1 << 16
_STDERR = 2
_REFUSED = re.compile(rb"OCI runtime exec failed: |unable to find (user|group) |.*: no matching entries in ")
_REASON_LIMIT = 400  # characters; what a command printed is not searched for such words
_ENDED = re.compile(
    rb"cannot exec (in a|a container that has) (stopped|deleted)"
    rb"|^task [0-9a-f]{64} not found|^ttrpc: closed: |error executing setns process: exit status"
)
_NO_PROGRAM = re.compile(rb'executable file not found|stat [^:]*: no such file|exec: "[^"]*": no such file')


class DockerExec:
    """A command in a container: `create`, `start`, `follow` to its end, `close` always.

    Attributes:
        tag: Value of the tag variable in the environment of its processes.
    """

    def __init__(self, http: EngineHttp, exec_id: str, tag: str) -> None:
        self._http = http
        self._exec_id = exec_id
        self.tag = tag
        self._pump: asyncio.Task[None] | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def create(
        cls, http: EngineHttp, container_id: str, command: Command, *, has_stdin: bool = False
    ) -> DockerExec:
        """Ask the engine for a command, without starting it.

        Raises:
            EngineError: 404 when the container is gone, 409 when it does not run.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached.
        """
        tag = uuid.uuid4().hex
        environment = {**command.env, TAG_VARIABLE: tag}
        body = {
            "AttachStdin": has_stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(command.argv),
            "Env": [f"{name}={value}" for name, value in environment.items()],
            # By number, for images without /etc/passwd.
            "User": "0" if command.user == "root" else str(command.user),
            "WorkingDir": command.workdir or "",
        }
        made = await http.call(Request("POST", f"/containers/{container_id}/exec", body=body))
        return cls(http, made["Id"], tag)

    async def start(self, stdout: Sink, stderr: Sink, stdin: Iterable[bytes] | None = None) -> None:
        """Start the command and begin to move its streams.

        Raises:
            EngineError: The engine refused to start it.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached.
        """
        reader, writer = await self.connect()
        self._pump = asyncio.create_task(_pump(reader, stdout, stderr))
        if stdin is not None:
            self._feeder = asyncio.create_task(_feed(writer, stdin))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start the command and return its frames and its standard input, for a caller who moves them.

        Raises:
            EngineError: The engine refused to start it.
            SandboxError: `sandbox.unavailable` when the engine cannot be reached.
        """
        request = Request("POST", f"/exec/{self._exec_id}/start", body={"Detach": False, "Tty": False})
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reader, self._writer = await self._http.hijack(request)
        return reader, self._writer

    async def follow(self, timeout_s: float) -> int | None:
        """Wait until the command ended and its output is read.

        A process that still holds the pipe after the command's end delays this
        by two seconds at most.

        Returns:
            The exit code; None when the deadline came first.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._end()
        except TimeoutError:
            return None

    async def _end(self) -> int:
        pump = self._reading()
        await asyncio.wait({pump}, timeout=_POLL_S)
        while not pump.done():
            code = await self.exit_code()
            await asyncio.wait({pump}, timeout=_POLL_S if code is None else _GRACE_S)
            if code is not None:
                return code
        delay_s = 0.005
        # The pipe may close long before the command ends, and does close a moment before the engine says so.
        while (code := await self.exit_code()) is None:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _POLL_S / 2)
        return code

    async def has_ended(self) -> bool:
        """Read what is still on its way from a command that was killed, and return whether it is dead."""
        return await self.follow(_DEATH_S) is not None

    async def close(self) -> None:
        """Stop moving streams and close the connection; the command itself is left alone."""
        for task in (self._pump, self._feeder):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
        if self._writer is not None:
            self._writer.close()

    def _reading(self) -> asyncio.Task[None]:
        if self._pump is None:
            raise AssertionError("start comes before follow")
        return self._pump

    async def exit_code(self) -> int | None:
        """Return the exit code; None = the command runs."""
        state = await self._http.call(Request("GET", f"/exec/{self._exec_id}/json"))
        return None if state["Running"] or state["ExitCode"] is None else int(state["ExitCode"])


async def _pump(reader: asyncio.StreamReader, stdout: Sink, stderr: Sink) -> None:
    """Split the engine's frames (8 bytes: stream, 3 zeros, length) into the two sinks until the end."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            stream, size = struct.unpack(">BxxxL", await reader.readexactly(8))
            sink = stderr if stream == _STDERR else stdout
            while size:
                part = await reader.read(min(size, _CHUNK_BYTES))
                if not part:
                    return
                size -= len(part)
                sink(part)


async def _feed(writer: asyncio.StreamWriter, parts: Iterable[bytes]) -> None:
    """Write standard input, then close that half; a command need not read it."""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.write_eof()


def split_parts(data: bytes) -> Iterable[bytes]:
    """Yield bytes in parts small enough that writing them never copies much at once."""
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def is_refusal(code: int, stdout: bytes) -> bool:
    """Return whether the output is the engine's reason why a command was not started.

    Engine 20.10 writes it to standard output with exit code 126, whatever the reason.
    """
    return code in {126, 127} and _REFUSED.match(stdout) is not None


def is_for_an_ended_container(code: int, stdout: bytes) -> bool:
    """Return whether the output is the engine's word that the container ended before the command began.

    runc 1.1 and containerd say so in a moment in which the engine may still call the container running.
    """
    return code in {126, 127} and len(stdout) < _REASON_LIMIT and _ENDED.search(stdout) is not None


def refusal_code(reason: bytes) -> int:
    """Return 127 when the program does not exist, 126 for every other reason."""
    return 127 if _NO_PROGRAM.search(reason) and b"chdir to cwd" not in reason else 126
