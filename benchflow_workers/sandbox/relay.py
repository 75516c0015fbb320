"""A way from a sandbox's loopback to one server of the worker, over the streams of a program inside.

For sandboxes in whose network the worker cannot listen (see `listener`): on other hosts, at
cloud providers, or beside a worker that is a container itself. A small program inside, in
Python or in Perl, listens on 127.0.0.1 and carries all connections over its standard streams.
Each message is a line, so that it passes whatever only passes text::

    ~P PORT             it listens there
    ~O NUMBER           a connection was made
    ~D NUMBER BASE64    bytes
    ~W NUMBER COUNT     so many bytes found their reader: as many more may come
    ~E NUMBER           no more bytes
    ~R NUMBER           the connection broke

Each end sends at most `WINDOW_BYTES` of a connection beyond those that found their reader.
"""

from __future__ import annotations

import asyncio
import binascii
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import ROOT, Command, Sandbox
from benchflow_workers.sandbox.finishing import finish
from benchflow_workers.sandbox.listener import LOOPBACK, Target, reached
from benchflow_workers.sandbox.network_streams import closing, end_tasks
from benchflow_workers.sandbox.process import Process

__all__ = ["Relay", "relayed"]

WINDOW_BYTES: Final = 1 << 18
"""Bytes of one connection that are under way in one direction; the programs inside say the same."""

CHUNK_BYTES: Final = 1 << 15
CONNECTIONS: Final = 128
"""At once for one sandbox; more wait inside."""

LINE_BYTES: Final = 1 << 16
"""Longer than any message."""

RESTARTS: Final = 5
"""How often in a turn a program that ended is started again, on the same port."""

START_S: Final = 60.0
_OUTBOX: Final = 8  # messages that wait to be written; more is kept back where it comes from
_MISSING: Final = 97  # exit code of the script below, and of no program it starts
_NOTHING_THERE: Final = frozenset({_MISSING, 126, 127})  # the others: not even a shell

# Found on the system's own path, which no agent can write to, and without what its variables would load.
_START: Final = f"""
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
unset PERL5OPT PERL5LIB PERLLIB
python=$1 perl=$2 port=$3
if python3 -IS -c 'import socket, select, binascii, sys; sys.exit(sys.version_info < (3, 6))' >/dev/null 2>&1; then
  exec python3 -ISB -c "$python" "$port"
fi
if perl -MSocket -MFcntl -e 1 >/dev/null 2>&1; then
  exec perl -e "$perl" "$port"
fi
exit {_MISSING}
"""


@dataclass(frozen=True, slots=True)
class Relay:
    """One open way; made by `relayed`.

    Attributes:
        address: Where it listens inside, `127.0.0.1:PORT`.
    """

    address: str
    _keeping: asyncio.Task[None] = field(repr=False)

    @property
    def failure(self) -> SandboxError | None:
        """Why it is closed before its block ended; None = it is not."""
        if not self._keeping.done() or self._keeping.cancelled():
            return None
        error = self._keeping.exception()
        return error if isinstance(error, SandboxError) else _failed(f"it ended: {error!r}")


@asynccontextmanager
async def relayed(sandbox: Sandbox, target: Target, *, user: str | int = ROOT) -> AsyncGenerator[Relay, None]:
    """Open a way for as long as the block runs.

    Args:
        sandbox: Any sandbox that runs commands.
        target: Where connections go.
        user: Who runs the program inside; nobody else but root can end it.

    Guarantees: processes of this sandbox reach the target, whatever its network is; a program that
    ended is started again, `RESTARTS` times; nothing of it is left when the block is. What comes
    from inside is not trusted: it can make connections to the target, and take a bounded part of
    the worker's memory.

    Raises:
        SandboxError: `task.unsupported`: the sandbox has neither Python nor Perl; `sandbox.exec_failed`:
            the program did not start; what the sandbox raises.
    """
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    keeping = asyncio.create_task(_keep(sandbox, target, user, ready))
    try:
        waited: set[asyncio.Future[Any]] = {keeping, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            keeping.result()
        yield Relay(f"{LOOPBACK}:{ready.result()}", keeping)
    finally:
        await finish(end_tasks(keeping))


async def _keep(sandbox: Sandbox, target: Target, user: str | int, ready: asyncio.Future[int]) -> None:
    """Run the program until this is cancelled.

    Raises:
        SandboxError: As `relayed`; the program ended too often.
    """
    port = 0
    for _ in range(1 + RESTARTS):
        async with sandbox.attach(_command(port, user)) as process:
            talk = _Talk(process, target)
            try:
                port = await talk.port()
            except SandboxError:
                if not ready.done():
                    raise
                continue
            if not ready.done():
                ready.set_result(port)
            await talk.carry()
    raise _failed(f"it ended {RESTARTS + 1} times in one turn")


def _command(port: int, user: str | int) -> Command:
    """Return the command that becomes the program.

    Args:
        port: Where it listens; 0 = any port that is free.
        user: Who runs it.
    """
    here = files("benchflow_workers.sandbox")
    programs = [here.joinpath(f"relay_inside.{kind}").read_text(encoding="utf-8") for kind in ("py", "pl")]
    argv = ("sh", "-c", _START, "benchflow-relay", *programs, str(port))
    return Command(argv, timeout_s=START_S, user=user, workdir="/")


def _not_started(code: int, said: bytes) -> SandboxError:
    """Return what is wrong with a sandbox whose program ended before it said anything."""
    if code not in _NOTHING_THERE:
        tail = said[-300:].decode("utf-8", "replace").strip()
        return _failed(f"it ended with exit code {code}{f': {tail}' if tail else ''}")
    return SandboxError(
        "task.unsupported",
        "No way to the worker can be opened inside this sandbox: its image has neither python3 nor perl.",
        hint="Add one of the two to the image.",
    )


def _failed(why: str) -> SandboxError:
    return SandboxError(
        "sandbox.exec_failed",
        f"The program in the sandbox that carries connections to the worker does not run: {why}.",
        hint="See the sandbox provider's log; an agent that is root can have ended it.",
    )


class _BrokenError(Exception):
    """What came from inside is not what the program there says."""


class _Talk:
    """The program's messages, and the connections they are about."""

    def __init__(self, process: Process, target: Target) -> None:
        self._process = process
        self._target = target
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._connections: dict[int, _Connection] = {}
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(_OUTBOX)

    async def port(self) -> int:
        """Return the port the program says it listens on.

        Raises:
            SandboxError: It does not; see `relayed`.
        """
        with suppress(TimeoutError, _BrokenError, ValueError):
            async with asyncio.timeout(START_S):
                while (line := await self._line()) is not None:
                    kind, number, _ = _fields(line)
                    if kind == b"P" and 0 < number < 1 << 16:
                        return number
                raise _not_started(await self._process.wait(), self._process.stderr.kept())
        raise _failed(f"it did not say within {START_S:g} s where it listens")

    async def carry(self) -> None:
        """Carry connections until the program ends."""
        writing = asyncio.create_task(self._write())
        try:
            with suppress(_BrokenError, ValueError):
                while (line := await self._line()) is not None:
                    self._take(*_fields(line))
        finally:
            await finish(end_tasks(writing, *(one.task for one in self._connections.values())))

    async def _write(self) -> None:
        """Write messages one after the other: whoever stops waiting for one does not leave half of it."""
        while await self._process.write(await self._outbox.get()):
            pass

    async def _line(self) -> bytes | None:
        """Return the next message; None = there will be no more. What is no message is passed over."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                if line.startswith(b"~"):
                    return line
            data = await self._process.read()
            if not data:
                return None
            self._lines.extend((self._rest + data).split(b"\n"))
            self._rest = self._lines.pop()
            if len(self._rest) > LINE_BYTES:
                raise _BrokenError

    def _take(self, kind: bytes, number: int, content: bytes) -> None:
        """Do what a message says; never waits, so that the program is never kept from reading."""
        if kind == b"O":
            self._open(number)
            return
        connection = self._connections.get(number)
        if connection is None:
            return
        if kind == b"D":
            connection.take(binascii.a2b_base64(content))
        elif kind == b"E":
            connection.end()
        elif kind == b"W":
            connection.credit(int(content))
        elif kind == b"R":
            connection.task.cancel()

    def _open(self, number: int) -> None:
        # The program forgets a connection a moment before this end does.
        if number in self._connections or len(self._connections) >= 2 * CONNECTIONS:
            raise _BrokenError
        connection = _Connection(number, self._outbox, self._target)
        self._connections[number] = connection
        connection.task.add_done_callback(lambda _: self._connections.pop(number))


class _Connection:
    """One connection, from the program's messages to the target.

    Args:
        number: What the program calls it.
        outbox: Takes messages to the program.
        target: Where it goes.

    Attributes:
        task: Carries its bytes until both directions ended or one breaks.
    """

    def __init__(self, number: int, outbox: asyncio.Queue[bytes], target: Target) -> None:
        self._number = number
        self._outbox = outbox
        self._waiting = bytearray()
        self._bytes = 0  # of those that came, without reader yet
        self._is_over = False
        self._credit = WINDOW_BYTES
        self._arrived = asyncio.Event()
        self._credited = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.create_task(self._serve(target))

    def take(self, data: bytes) -> None:
        """Take bytes for the target."""
        self._bytes += len(data)
        if self._bytes > WINDOW_BYTES:
            raise _BrokenError
        self._waiting += data
        self._arrived.set()

    def end(self) -> None:
        """Note that no more bytes come."""
        self._is_over = True
        self._arrived.set()

    def credit(self, count: int) -> None:
        """Note that bytes found their reader inside."""
        self._credit = min(WINDOW_BYTES, self._credit + max(0, count))
        self._credited.set()

    async def _serve(self, target: Target) -> None:
        try:
            async with closing(await reached(target)) as server:
                pumps = [
                    asyncio.create_task(self._down(server.writer)),
                    asyncio.create_task(self._up(server.reader)),
                ]
                try:
                    done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
                finally:
                    await end_tasks(*pumps)
                for pump in done:
                    pump.result()
        except OSError:
            await self._tell("R")

    async def _down(self, writer: asyncio.StreamWriter) -> None:
        """Give the target what comes from inside."""
        while self._waiting or not self._is_over:
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()
                continue
            data = bytes(self._waiting)
            self._waiting.clear()
            writer.write(data)
            await writer.drain()
            self._bytes -= len(data)
            await self._tell("W", str(len(data)).encode())
        if writer.can_write_eof():
            writer.write_eof()

    async def _up(self, reader: asyncio.StreamReader) -> None:
        """Send inside what the target answers."""
        while True:
            while not self._credit:
                self._credited.clear()
                await self._credited.wait()
            data = await reader.read(min(CHUNK_BYTES, self._credit))
            if not data:
                break
            self._credit -= len(data)
            await self._tell("D", binascii.b2a_base64(data, newline=False))
        await self._tell("E")

    async def _tell(self, kind: str, content: bytes = b"") -> None:
        await self._outbox.put(f"~{kind} {self._number} ".encode() + content + b"\n")


def _fields(line: bytes) -> tuple[bytes, int, bytes]:
    """Return kind, number and content of a message; raises ValueError where it has another form."""
    kind, number, *content = line[1:].split(b" ")
    return kind, int(number), content[0] if content else b""
