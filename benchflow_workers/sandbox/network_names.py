"""Reads which host a client asks for: of a DNS question, a TLS hello, or the head of an HTTP request.

Pure functions over bytes that an agent sent: whatever is malformed has no name.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass

_TYPE_A, _CLASS_IN = 1, 1
_NXDOMAIN, _FORMAT_ERROR = 3, 1
_TTL_S = 5  # a policy may change with the next phase
_HEADER = struct.Struct("!6H")
_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_RECORD_BYTES, _HELLO_BYTES = 5, 4
_HOP_HEADERS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"upgrade", b"http2-settings"})
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Question:
    """One DNS question and the bytes of it that an answer repeats."""

    name: str
    kind: int
    raw: bytes


def read_question(packet: bytes) -> Question | None:
    """Return the first question of a DNS query; None = it is no query with one question."""
    if len(packet) < _HEADER.size:
        return None
    _, flags, questions, *_ = _HEADER.unpack_from(packet)
    if flags & 0xF800 or questions != 1:  # an answer, or not a standard query
        return None
    labels, at = [], _HEADER.size
    while at < len(packet) and (size := packet[at]) != 0:
        if size > 63 or at + 1 + size > len(packet):
            return None
        labels.append(packet[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size
    if at + 5 > len(packet):
        return None
    (kind,) = struct.unpack_from("!H", packet, at + 1)
    return Question(".".join(labels), kind, packet[_HEADER.size : at + 5])


def answer_dns(packet: bytes, question: Question | None, address: str | None) -> bytes:
    """Return the answer to a query.

    Args:
        packet: The query, at least two bytes.
        question: What was read of it; None = it is malformed.
        address: IPv4 address the name has in the sandbox; None = there is no such name.
    """
    number = packet[:2]
    if question is None:
        return number + struct.pack("!5H", 0x8080 | _FORMAT_ERROR, 0, 0, 0, 0)
    if address is None:
        return number + struct.pack("!5H", 0x8180 | _NXDOMAIN, 1, 0, 0, 0) + question.raw
    if question.kind != _TYPE_A:
        return number + struct.pack("!5H", 0x8180, 1, 0, 0, 0) + question.raw
    record = struct.pack("!HHHIH", 0xC00C, _TYPE_A, _CLASS_IN, _TTL_S, 4)
    return (
        number
        + struct.pack("!5H", 0x8180, 1, 1, 0, 0)
        + question.raw
        + record
        + ipaddress.IPv4Address(address).packed
    )


def read_server_name(data: bytes) -> str | None:
    """Return the server name of the TLS hello that a connection begins with.

    Returns:
        The name; "" = there is none, or this is no TLS; None = more bytes are needed.
    """
    hello, at = b"", 0
    while True:
        if len(data) < at + _RECORD_BYTES:
            return None if data[at : at + 1] in {b"", bytes((_HANDSHAKE,))} else ""
        kind, _, size = struct.unpack_from("!BHH", data, at)
        if kind != _HANDSHAKE:
            return ""
        if len(data) < at + _RECORD_BYTES + size:
            return None
        hello += data[at + _RECORD_BYTES : at + _RECORD_BYTES + size]
        at += _RECORD_BYTES + size
        if len(hello) >= _HELLO_BYTES and len(hello) - _HELLO_BYTES >= int.from_bytes(hello[1:4], "big"):
            break
    if hello[0] != _CLIENT_HELLO:
        return ""
    try:
        return _server_name(hello[_HELLO_BYTES:])
    except (IndexError, struct.error):
        return ""


def _server_name(hello: bytes) -> str:
    """Return the server name of a ClientHello's body (RFC 8446, 4.1.2; RFC 6066, 3)."""
    at = 2 + 32
    at += 1 + hello[at]
    at += 2 + struct.unpack_from("!H", hello, at)[0]
    at += 1 + hello[at]
    end = at + 2 + struct.unpack_from("!H", hello, at)[0]
    at += 2
    while at + 4 <= min(end, len(hello)):
        kind, size = struct.unpack_from("!HH", hello, at)
        if kind == _SERVER_NAME:
            _, name_kind, length = struct.unpack_from("!HBH", hello, at + 4)
            name = hello[at + 9 : at + 9 + length]
            return name.decode("latin-1") if name_kind == 0 and len(name) == length else ""
        at += 4 + size
    return ""


@dataclass(frozen=True, slots=True)
class HttpHead:
    """The head of one request: the host it is for, and the bytes to send on."""

    host: str
    forwarded: bytes


def read_http_head(head: bytes) -> HttpHead | None:
    """Return what the head of an HTTP/1 request asks for; None = it names no single host.

    What is sent on asks the server to close after one answer: a later request on the
    same connection could name another host.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or b"\n" in head.replace(b"\r\n", b""):
        return None
    hosts, kept = [], []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or name != name.strip():
            return None  # folded or malformed: servers read such lines differently
        if name.lower() == b"host":
            hosts.append(value.strip())
        if name.lower() not in _HOP_HEADERS:
            kept.append(line)
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None or match.group(2) not in {None, b"80"}:
        return None
    target = parts[1]
    if not target.startswith(b"/") and target != b"*" and not _is_url_of(target, hosts[0]):
        return None
    forwarded = b"\r\n".join([first, *kept, b"Connection: close", b"", b""])
    return HttpHead(match.group(1).decode("latin-1"), forwarded)


def _is_url_of(target: bytes, host: bytes) -> bool:
    """Return whether a request target is a URL at the host of the request."""
    scheme, _, rest = target.partition(b"://")
    return scheme.lower() == b"http" and re.split(rb"[/?#]", rest, maxsplit=1)[0].lower() == host.lower()
