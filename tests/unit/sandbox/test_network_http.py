"""One request passes the gateway, to the last byte of its body; what follows it on the connection never does."""

from __future__ import annotations

import asyncio
import socket

import pytest

from benchflow_workers.sandbox.network_http import pass_request, read_head, refuse, tell_unreached
from benchflow_workers.sandbox.network_names import read_http_head
from benchflow_workers.sandbox.network_streams import Ends, close

ANSWER = b"HTTP/1.1 200 OK\r\n\r\nfine"
NEXT = b"GET /secret HTTP/1.1\r\nHost: a.org\r\n\r\n"


async def pair() -> tuple[Ends, Ends]:
    one, other = socket.socketpair()
    return (
        Ends(*await asyncio.open_connection(sock=one)),
        Ends(*await asyncio.open_connection(sock=other)),
    )


async def passed(sent: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Send bytes through the gateway to a server that answers after a body; returns what else it saw, and the answer."""
    client, inside = await pair()
    outside, server = await pair()
    client.writer.write(sent)
    head = await read_head(inside.reader, scheme="http", port=80)
    assert head is not None
    passing = asyncio.create_task(pass_request(inside, outside, head))
    assert await server.reader.readexactly(len(head.forwarded + body)) == head.forwarded + body
    server.writer.write(ANSWER)
    server.writer.write_eof()
    await passing
    await close(outside.writer)
    await close(inside.writer)
    found = await server.reader.read(), await client.reader.read()
    await close(client.writer)
    await close(server.writer)
    return found


@pytest.mark.parametrize(
    ("head", "body", "forwarded"),
    [
        (b"GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", b"", b""),
        (b"POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\n", b"hello", b"hello"),
        (
            b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"5;x=y\r\nhello\r\n0A\r\n0123456789\r\n0\r\n",
            b"5\r\nhello\r\n0A\r\n0123456789\r\n0\r\n\r\n",
        ),
    ],
)
async def test_body_is_sent_on_and_the_next_request_is_not(
    head: bytes, body: bytes, forwarded: bytes
) -> None:
    assert await passed(head + body + NEXT, forwarded) == (b"", ANSWER)


async def test_chunk_that_is_no_chunk_ends_the_body() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n"

    assert await passed(head + b"5\r\nhello-and-more\r\n0\r\n\r\n", b"5\r\nhello") == (b"", ANSWER)
    assert await passed(head + b"-5\r\nhello\r\n0\r\n\r\n", b"") == (b"", ANSWER)


@pytest.mark.parametrize(
    "lines",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b": empty",
    ],
)
def test_request_whose_body_has_no_one_end_is_none(lines: bytes) -> None:
    assert read_http_head(b"POST / HTTP/1.1\r\nHost: a.org\r\n" + lines + b"\r\n\r\n") is None


@pytest.mark.parametrize(
    ("first", "host", "is_read"),
    [
        (b"GET https://a.org/x HTTP/1.1", b"a.org", True),
        (b"GET / HTTP/1.1", b"a.org:443", True),
        (b"GET http://a.org/x HTTP/1.1", b"a.org", False),
        (b"GET / HTTP/1.1", b"a.org:80", False),
        (b"CONNECT a.org:443 HTTP/1.1", b"a.org:443", False),
    ],
)
def test_request_inside_tls_is_for_the_same_port_and_scheme(first: bytes, host: bytes, is_read: bool) -> None:
    head = read_http_head(first + b"\r\nHost: " + host + b"\r\n\r\n", scheme="https", port=443)

    assert (head is not None) is is_read


async def test_refusals_say_why() -> None:
    client, inside = await pair()
    await refuse(inside.writer, "denied-url")
    await tell_unreached(inside.writer, "certificate expired")
    await close(inside.writer)

    said = (await client.reader.read()).split(b"\r\n")

    assert said[:2] == [b"HTTP/1.1 403 Forbidden", b"X-BenchFlow-Blocked: denied-url"]
    assert b"HTTP/1.1 502 Bad Gateway" in said
    assert said[-1] == b"The server could not be reached through the gateway: certificate expired\n"
    await close(client.writer)
