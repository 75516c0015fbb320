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
TLS_HANDSHAKE = bytes((_HANDSHAKE,))
"""What every TLS connection begins with."""

_RECORD_BYTES, _HELLO_BYTES = 5, 4
_HOP_HEADERS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"upgrade", b"http2-settings"})
_LENGTH = re.compile(rb"\d{1,18}")
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
            return None if data[at : at + 1] in {b"", TLS_HANDSHAKE} else ""
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
    """The head of one request: where it is for, and what is sent on.

    Attributes:
        host: Host it names.
        target: Path or URL it asks for, as it was sent.
        forwarded: Bytes to send on.
        body_bytes: Length of the body that follows; 0 = none, or it comes in chunks.
        is_chunked: The body comes in chunks.
    """

    host: str
    target: str
    forwarded: bytes
    body_bytes: int = 0
    is_chunked: bool = False


def read_http_head(head: bytes, *, scheme: str = "http", port: int = 80) -> HttpHead | None:
    """Return what the head of an HTTP/1 request asks for.

    What is sent on asks the server to close after one answer: a later request on the
    same connection could name another host.

    Args:
        head: All up to the empty line, which is included.
        scheme: `http` or `https`.
        port: What the connection is for; a request for another one is none.

    Returns:
        None where it names no single host, or where its body has no one end: servers read
        such requests differently.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or b"\n" in head.replace(b"\r\n", b""):
        return None
    found = _fields(lines)
    host = None if found is None else _host_of(found.get(b"host", []), port)
    body = None if found is None else _body(found)
    if found is None or host is None or body is None or not _is_for(parts[1], found[b"host"][0], scheme):
        return None
    kept = [line for line in lines if line.partition(b":")[0].lower() not in _HOP_HEADERS]
    forwarded = b"\r\n".join([first, *kept, b"Connection: close", b"", b""])
    return HttpHead(host, parts[1].decode("latin-1"), forwarded, *body)


def _fields(lines: list[bytes]) -> dict[bytes, list[bytes]] | None:
    """Return the values of each header; None = a line is folded or malformed."""
    found: dict[bytes, list[bytes]] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            return None
        found.setdefault(name.lower(), []).append(value.strip())
    return found


def _host_of(hosts: list[bytes], port: int) -> str | None:
    match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
    if match is None or match.group(2) not in {None, str(port).encode()}:
        return None
    return match.group(1).decode("latin-1")


def _body(found: dict[bytes, list[bytes]]) -> tuple[int, bool] | None:
    """Return the length of a body and whether it comes in chunks (RFC 9112, 6.3)."""
    codings, lengths = found.get(b"transfer-encoding", []), found.get(b"content-length", [])
    if codings:
        return (0, True) if not lengths and [item.lower() for item in codings] == [b"chunked"] else None
    if not lengths:
        return 0, False
    return (int(lengths[0]), False) if len(lengths) == 1 and _LENGTH.fullmatch(lengths[0]) else None


def _is_for(target: bytes, host: bytes, scheme: str) -> bool:
    """Return whether a request target is a path, or a URL at the host of the request."""
    if target.startswith(b"/") or target == b"*":
        return True
    given, _, rest = target.partition(b"://")
    is_same = re.split(rb"[/?#]", rest, maxsplit=1)[0].lower() == host.lower()
    return given.lower() == scheme.encode() and is_same
