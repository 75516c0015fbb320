"""The few bytes worker and holder exchange: length-prefixed JSON frames and file descriptors.

A control socket (SOCK_SEQPACKET) carries one datagram a request: the name of the
operation, and the end of a new channel (SOCK_STREAM) on which the request, the
answers and finally the exit status of the forked process travel.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HEADER = struct.Struct(">I")
"""Length of the JSON text that follows, in bytes."""

MAX_FDS = 8
"""File descriptors one message carries at most."""

_DATAGRAM_BYTES = 1 << 16


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as a frame; text that is no UTF-8 keeps its surrogate escapes."""
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    return HEADER.pack(len(text)) + text


def decode(text: bytes) -> dict[str, Any]:
    """Return the message of a frame's JSON text."""
    message: dict[str, Any] = json.loads(text)
    return message


def send(channel: socket.socket, message: Mapping[str, Any], fds: Iterable[int] = ()) -> None:
    """Send a frame, blocking; a peer that is gone is not an error."""
    data = encode(message)
    try:
        sent = channel.sendmsg([data], _rights(tuple(fds)))
        channel.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError):
        return


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Read one frame and the descriptors that came with it, blocking.

    Raises:
        EOFError: The peer is gone.
    """
    header, fds = receive_datagram(channel, HEADER.size)
    while len(header) < HEADER.size:
        header += _some(channel, HEADER.size - len(header))
    left = HEADER.unpack(header)[0]
    parts: list[bytes] = []
    while left:
        parts.append(_some(channel, left))
        left -= len(parts[-1])
    return decode(b"".join(parts)), fds


def receive_datagram(channel: socket.socket, size_bytes: int = _DATAGRAM_BYTES) -> tuple[bytes, list[int]]:
    """Read what is there, with descriptors that no program started later inherits.

    Raises:
        EOFError: The peer is gone.
    """
    try:
        data, ancillary, _, _ = channel.recvmsg(
            size_bytes, socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError as error:
        raise EOFError from error
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if not data:
        raise EOFError
    return data, list(fds)


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that may be closed already."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue


def _rights(fds: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _some(channel: socket.socket, size_bytes: int) -> bytes:
    try:
        data = channel.recv(size_bytes)
    except ConnectionResetError as error:
        raise EOFError from error
    if not data:
        raise EOFError
    return data
