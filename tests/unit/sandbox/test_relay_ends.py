"""Both ends of a relay, each against what nobody honest would send it."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files

import pytest

from benchflow_workers.sandbox import relay_inside
from benchflow_workers.sandbox.base import Command
from benchflow_workers.sandbox.listener import LoopbackTarget
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.relay import CONNECTIONS, LINE_BYTES, RESTARTS, WINDOW_BYTES, relayed
from tests.local_server import loopback_server
from tests.waiting import until

PERL = files("benchflow_workers.sandbox").joinpath("relay_inside.pl")
EVERY_BYTE = bytes(range(256)) * 40
"""No multiple of three, and every value."""


@dataclass
class Inside:
    """A program inside, by its streams."""

    source: int
    messages: Generator[bytes, None, None]

    def hear(self) -> list[bytes]:
        """Return the fields of its next message."""
        return next(self.messages).split(b" ")

    def say(self, line: bytes) -> None:
        os.write(self.source, line + b"\n")


def _lines(pipe: int) -> Generator[bytes, None, None]:
    with os.fdopen(pipe, "rb") as stream:
        yield from (line.rstrip(b"\n") for line in stream)


@contextmanager
def python_inside() -> Generator[Inside, None, None]:
    (there, source), (back, sink) = os.pipe(), os.pipe()
    thread = threading.Thread(target=relay_inside.main, args=(0, there, sink))
    thread.start()
    try:
        yield Inside(source, _lines(back))
    finally:
        os.close(source)
        thread.join()
        os.close(there)
        os.close(sink)


@contextmanager
def perl_inside() -> Generator[Inside, None, None]:
    argv = ("perl", "-e", PERL.read_text(encoding="utf-8"), "0")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Inside(process.stdin.fileno(), (line.rstrip(b"\n") for line in process.stdout))
        finally:
            process.stdin.close()


@pytest.fixture(params=[python_inside, perl_inside], ids=["python", "perl"])
def inside(request: pytest.FixtureRequest) -> Generator[tuple[Inside, socket.socket], None, None]:
    """A program inside with one connection made to it."""
    with request.param() as program:
        kind, port, _ = program.hear()
        assert kind == b"~P"
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as connection:
            assert program.hear()[:2] == [b"~O", b"1"]
            yield program, connection


def test_every_byte_passes_the_programs_own_encoding(inside: tuple[Inside, socket.socket]) -> None:
    program, connection = inside

    connection.sendall(EVERY_BYTE)
    heard = b""
    while len(heard) < len(EVERY_BYTE):
        heard += base64.b64decode(program.hear()[2], validate=True)
    for size in range(1, 200):
        program.say(b"~D 1 " + base64.b64encode(EVERY_BYTE[:size]))
    answered = b""
    while len(answered) < sum(range(200)):
        answered += connection.recv(4096)

    assert heard == EVERY_BYTE
    assert answered == b"".join(EVERY_BYTE[:size] for size in range(1, 200))


def test_a_program_sends_no_more_than_its_window(inside: tuple[Inside, socket.socket]) -> None:
    program, connection = inside
    sending = threading.Thread(target=connection.sendall, args=(b"x" * (WINDOW_BYTES + 1),))
    sending.start()
    heard = 0
    while heard < WINDOW_BYTES:
        heard += len(base64.b64decode(program.hear()[2]))

    program.say(b"~D 1 eQ==")  # answered in order: nothing else was sent before
    told = program.hear()
    program.say(b"~W 1 1")
    last = program.hear()
    sending.join()

    assert (heard, told, last) == (WINDOW_BYTES, [b"~W", b"1", b"1"], [b"~D", b"1", b"eA=="])


def test_the_end_passes_in_each_direction_by_itself(inside: tuple[Inside, socket.socket]) -> None:
    program, connection = inside

    connection.shutdown(socket.SHUT_WR)
    ended = program.hear()
    program.say(b"~D 1 b25l\n~D 1 dHdv\n~E 1")
    answered = b""
    while part := connection.recv(100):
        answered += part

    assert (ended[:2], answered) == ([b"~E", b"1"], b"onetwo")


def test_a_connection_that_broke_is_told_and_others_go_on(inside: tuple[Inside, socket.socket]) -> None:
    program, connection = inside
    other = socket.create_connection(connection.getpeername(), timeout=30)
    assert program.hear()[:2] == [b"~O", b"2"]

    program.say(b"~R 1\nnoise\n~D 7 b25l")
    cut = connection.recv(1)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    other.close()  # with a reset
    told = program.hear()

    assert (cut, told[:2]) == (b"", [b"~R", b"2"])


@dataclass
class Said:
    """A program that says what a test wrote, and then nothing more until it is ended."""

    words: list[bytes]
    written: list[bytes] = field(default_factory=list)
    stderr: CappedOutput = field(default_factory=lambda: CappedOutput(0))

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self.words:
            return self.words.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    async def wait(self) -> int:
        return 0


@dataclass
class Saying:
    """A sandbox whose programs say what a test wrote, one piece after another."""

    words: tuple[bytes, ...]
    programs: list[Said] = field(default_factory=list)

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[Said, None]:
        self.programs.append(Said(list(self.words)))
        yield self.programs[-1]


BROKEN = {
    "more than its window": (
        b"~P 7 \n~O 1 \n",
        b"~D 1 " + base64.b64encode(b"x" * (WINDOW_BYTES + 1)) + b"\n",
    ),
    "a line that does not end": (b"~P 7 \n", b"~" + b"x" * LINE_BYTES),
    "one number for two": (b"~P 7 \n~O 1 \n~O 1 \n",),
    "too many connections": (b"~P 7 \n", *(b"~O %d \n" % number for number in range(2 * CONNECTIONS + 1))),
    "a number that is none": (b"~P 7 \n~O x \n",),
    "no base64": (b"~P 7 \n~O 1 \n~D 1 abc\n",),
}


@pytest.mark.parametrize("words", BROKEN.values(), ids=BROKEN)
async def test_a_program_that_breaks_the_rules_is_ended_and_in_the_end_told(
    words: tuple[bytes, ...],
) -> None:
    sandbox = Saying(words)
    with loopback_server() as server:
        async with relayed(sandbox, LoopbackTarget(server.silent_port)) as relay:
            await asyncio.to_thread(until, lambda: relay.failure)

    assert relay.failure.code == "sandbox.exec_failed"
    assert len(sandbox.programs) == 1 + RESTARTS


async def test_what_is_no_message_is_passed_over() -> None:
    """A login may print something before the program does."""
    words = (
        b"Welcome!\n\n~P 70",
        b"00 \r\n~O 1 \n~D 1 " + base64.b64encode(b"GET /v1 HTTP/1.0\r\n\r\n") + b"\nnoise\n",
    )
    sandbox = Saying(words)
    with loopback_server() as server:
        async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
            await asyncio.to_thread(
                until, lambda: any(line.startswith(b"~D 1 ") for line in sandbox.programs[0].written)
            )

    assert (relay.address, server.asked) == ("127.0.0.1:7000", ["/v1"])
