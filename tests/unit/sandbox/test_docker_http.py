"""The engine's client against real sockets that answer as an engine would."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_engine import connect
from benchflow_workers.sandbox.docker_http import Endpoint, EngineError, EngineHttp, Request

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(handler: Handler) -> AsyncGenerator[EngineHttp, None]:
    """Serve each connection by `handler(head of the request, reader, writer)`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield EngineHttp(Endpoint(host="127.0.0.1", port=port), "1.41")


def answering(data: bytes) -> Handler:
    async def handler(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return handler


async def test_request_carries_version_query_and_json() -> None:
    seen: list[bytes] = []

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend([head, await reader.readexactly(8)])
        writer.write(b'HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n{"Id":"x"}')

    async with engine(handler) as http:
        answer = await http.call(Request("POST", "/a b\r\nX: y", query={"q": "a b&c"}, body={"A": 1}))

    assert answer == {"Id": "x"}
    assert seen[0].startswith(b"POST /v1.41/a%20b%0D%0AX:%20y?q=a+b%26c HTTP/1.1\r\n")
    assert b"Content-Length: 8\r\n" in seen[0]
    assert json.loads(seen[1]) == {"A": 1}


async def test_file_body_is_sent_whole_from_its_start() -> None:
    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n%d" % (await reader.readexactly(size)).count(b"x"))

    body = io.BytesIO(b"x" * 700_000)
    body.seek(5)
    async with engine(handler) as http:
        assert await http.call(Request("PUT", "/a", body=body)) == 700_000


async def test_chunked_answer_is_put_together() -> None:
    data = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n3;x=y\r\n"b"\r\n1\r\n}\r\n0\r\n\r\n'
    async with engine(answering(data)) as http:
        assert await http.call(Request("GET", "/a")) == {"a": "b"}


async def test_empty_answer_is_none() -> None:
    async with engine(answering(b"HTTP/1.1 204 No Content\r\n\r\n")) as http:
        assert await http.call(Request("DELETE", "/a")) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [(b'{"message":"no such thing"}', "no such thing"), (b"plain words\n", "plain words"), (b"[]", "[]")],
)
async def test_error_status_carries_the_engines_words(body: bytes, message: str) -> None:
    async with engine(answering(b"HTTP/1.1 404 Not Found\r\n\r\n" + body)) as http:
        with pytest.raises(EngineError) as caught:
            await http.call(Request("GET", "/a"))

    assert (caught.value.status, caught.value.message) == (404, message)


async def test_endless_error_is_not_read_to_its_end() -> None:
    async with engine(answering(b"HTTP/1.1 500 Oops\r\n\r\n" + b"x" * 3_000_000)) as http:
        with pytest.raises(EngineError) as caught:
            await http.call(Request("GET", "/a"))

    assert len(caught.value.message) < 500_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nshort",
    ],
)
async def test_engine_that_hangs_up_is_unavailable(data: bytes) -> None:
    async with engine(answering(data)) as http:
        with pytest.raises(SandboxError, match="closed the connection during GET /a") as caught:
            await http.call(Request("GET", "/a"))

    assert caught.value.code == "sandbox.unavailable"


async def test_silent_engine_is_unavailable_after_the_timeout() -> None:
    async def handler(_head: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(handler) as http:
        with pytest.raises(SandboxError, match="did not answer GET /a") as caught:
            await http.call(Request("GET", "/a"), timeout_s=0.05)

    assert caught.value.code == "sandbox.unavailable"


async def test_hijacked_connection_keeps_bytes_that_came_with_the_head() -> None:
    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Connection: Upgrade\r\nUpgrade: tcp\r\n" in head
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 101 UPGRADED\r\n\r\nearly")
        writer.write(await reader.read())

    async with engine(handler) as http:
        reader, writer = await http.hijack(Request("POST", "/exec/1/start", body={}))
        writer.write(b" late")
        writer.write_eof()
        assert await reader.read() == b"early late"
        writer.close()


async def test_refused_hijack_is_an_error() -> None:
    async with engine(answering(b'HTTP/1.1 409 Conflict\r\n\r\n{"message":"paused"}')) as http:
        with pytest.raises(EngineError, match="paused"):
            await http.hijack(Request("POST", "/exec/1/start", body={}))


async def test_hijack_of_a_dying_engine_is_unavailable() -> None:
    async with engine(answering(b"")) as http:
        with pytest.raises(SandboxError, match="closed the connection") as caught:
            await http.hijack(Request("POST", "/exec/1/start", body={}))

    assert caught.value.code == "sandbox.unavailable"


async def test_nobody_listening_is_unavailable_with_the_address(tmp_path: Path) -> None:
    http = EngineHttp(Endpoint(unix_path=str(tmp_path / "no.sock")), "")

    with pytest.raises(SandboxError, match=r"No Docker daemon answers at unix://.*no\.sock") as caught:
        await http.call(Request("GET", "/version"))

    assert caught.value.code == "sandbox.unavailable"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 404 No\r\n\r\n",
        b"HTTP/1.1 204 No\r\n\r\n",
    ],
)
async def test_something_else_at_the_address_is_no_engine(answer: bytes) -> None:
    async with engine(answering(answer)) as http:
        with pytest.raises(SandboxError, match="is no Docker engine") as caught:
            await connect(http.endpoint)

    assert caught.value.code == "sandbox.unavailable"


@pytest.mark.parametrize(("offered", "spoken"), [("1.41", b"/v1.41/x"), ("9.99", b"/v1.47/x")])
async def test_version_spoken_is_the_engines_up_to_what_is_known(offered: str, spoken: bytes) -> None:
    seen: list[bytes] = []

    async def handler(head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(head.split()[1])
        writer.write(b'HTTP/1.1 200 OK\r\n\r\n{"ApiVersion":"%s"}' % offered.encode())
        await writer.drain()

    async with engine(handler) as http:
        await (await connect(http.endpoint)).call(Request("GET", "/x"))

    assert seen == [b"/version", spoken]
