"""Which host a client asks for, read of bytes that an agent may have made to mislead."""

from __future__ import annotations

import socket
import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_workers.sandbox.network_names import (
    answer_dns,
    read_http_head,
    read_question,
    read_server_name,
)


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    return struct.pack("!6H", 0x1234, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def hello(name: str | None) -> bytes:
    """The first bytes a real TLS client sends."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def in_records(data: bytes, size: int) -> bytes:
    """The same hello cut into TLS records of another size, as the protocol allows."""
    body = data[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def test_name_of_a_dns_question_is_read() -> None:
    question = read_question(query("Files.Example.org", 28))

    assert question is not None
    assert (question.name, question.kind) == ("Files.Example.org", 28)


def test_permitted_name_has_the_address_of_the_gateway() -> None:
    packet = query("a.org")

    answer = answer_dns(packet, read_question(packet), "198.18.0.1")

    assert answer[:8] == packet[:2] + struct.pack("!3H", 0x8180, 1, 1)
    assert answer[-4:] == socket.inet_aton("198.18.0.1")


def test_permitted_name_has_no_address_of_version_6() -> None:
    packet = query("a.org", 28)

    assert answer_dns(packet, read_question(packet), "198.18.0.1")[2:8] == struct.pack("!3H", 0x8180, 1, 0)


def test_other_name_does_not_exist() -> None:
    packet = query("b.org")

    assert answer_dns(packet, read_question(packet), None)[2:8] == struct.pack("!3H", 0x8183, 1, 0)


def test_question_that_cannot_be_read_is_a_format_error() -> None:
    assert answer_dns(b"\x12\x34", None, "198.18.0.1") == b"\x12\x34" + struct.pack("!5H", 0x8081, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        query("a.org")[:14],
        query("a.org")[:-1],
        struct.pack("!6H", 1, 0x8180, 1, 0, 0, 0) + query("a.org")[12:],
        struct.pack("!6H", 1, 0x0100, 2, 0, 0, 0) + query("a.org")[12:],
        query("a.org")[:12] + b"\xc0\x0c\0\1\0\1",
    ],
    ids=["empty", "cut in the name", "cut at the end", "an answer", "two questions", "a pointer"],
)
def test_odd_packet_asks_nothing(packet: bytes) -> None:
    assert read_question(packet) is None


def test_server_name_of_a_real_hello_is_read() -> None:
    assert read_server_name(hello("pypi.example.org")) == "pypi.example.org"


def test_server_name_is_read_over_several_records() -> None:
    assert read_server_name(in_records(hello("pypi.example.org"), 40)) == "pypi.example.org"


def test_hello_without_a_name_names_nothing() -> None:
    assert read_server_name(hello(None)) == ""


def test_part_of_a_hello_needs_more() -> None:
    data = hello("a.org")

    assert {read_server_name(data[:size]) for size in range(len(data))} == {None}


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-OpenSSH\r\n", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x00\x04\x02\x00\x00\x00", b"\x17\x03\x03\x00\x01x",
     b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"],
    ids=["ssh", "http", "a server's hello", "data", "a hello of one byte"],
)  # fmt: skip
def test_what_is_no_hello_names_nothing(data: bytes) -> None:
    assert read_server_name(data) == ""


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    read_question(data)
    read_server_name(data)
    read_server_name(b"\x16\x03\x01" + len(data).to_bytes(2, "big") + data)
    body = b"\x01" + len(data).to_bytes(3, "big") + data
    read_server_name(b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body)
    read_http_head(data + b"\r\n\r\n")


def test_request_is_sent_on_as_the_only_one_of_its_connection() -> None:
    head = read_http_head(b"GET /a HTTP/1.1\r\nHost: a.org:80\r\nConnection: keep-alive\r\nX-One: 1\r\n\r\n")

    assert head is not None
    assert head.host == "a.org"
    assert head.forwarded == b"GET /a HTTP/1.1\r\nHost: a.org:80\r\nX-One: 1\r\nConnection: close\r\n\r\n"


def test_request_for_a_url_of_its_own_host_is_read() -> None:
    head = read_http_head(b"GET http://A.org/x HTTP/1.1\r\nHost: a.org\r\n\r\n")

    assert head is not None
    assert head.host == "a.org"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: 1",
        b"GET / HTTP/1.1\r\nHost: a.org\r\nHost: b.org",
        b"GET / HTTP/1.1\r\nHost: a.org:8080",
        b"GET / HTTP/1.1\r\nHost : a.org",
        b"GET / HTTP/1.1\r\nHost: a.org\r\n b.org",
        b"GET / HTTP/1.1\r\nHost: a.org\nHost: b.org",
        b"GET / HTTP/1.1\r\nHost: user@b.org",
        b"GET http://b.org/ HTTP/1.1\r\nHost: a.org",
        b"GET http://a.org@b.org/ HTTP/1.1\r\nHost: a.org",
        b"CONNECT b.org:443 HTTP/1.1\r\nHost: a.org",
        b"PRI * HTTP/2.0\r\n",
        b"GET /",
    ],
)
def test_request_that_servers_may_read_differently_names_no_host(head: bytes) -> None:
    assert read_http_head(head + b"\r\n\r\n") is None
