"""The end of a relay that runs inside a sandbox; no worker imports it.

It listens on the sandbox's loopback and carries the bytes of each connection over its own
standard streams, one line of text a message (see `relay`). It runs on an image's
Python (3.6 or later), so it imports nothing of ours and keeps to what those have. Its twin for images
without Python is `relay_inside.pl`.
"""

import os
import select
import socket
import sys
from binascii import a2b_base64, b2a_base64

WINDOW_BYTES = 1 << 18
CHUNK_BYTES = 1 << 15
CONNECTIONS = 128


class Channel:
    """One connection: what it may still send, and what it has still to be given."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.credit = WINDOW_BYTES
        self.waiting = bytearray()
        self.has_said_all = False
        self.has_heard_all = False


class Relay:
    """All connections of one listening socket."""

    def __init__(self, listener: socket.socket, source: int, sink: int) -> None:
        self.listener = listener
        self.source = source
        self.sink = sink
        self.channels = {}  # type: dict[int, Channel]
        self.made = 0
        self.line = b""

    def serve(self) -> None:
        """Carry bytes until standard input ends."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Do what can be done now; False = standard input ended."""
        channels = list(self.channels.values())
        reading = [one.sock for one in channels if one.credit > 0 and not one.has_said_all]  # type: list[socket.socket | int]
        if len(channels) < CONNECTIONS:
            reading.append(self.listener)
        writing = [one.sock for one in channels if one.waiting]
        readable, writable, _ = select.select([*reading, self.source], writing, [])
        for one in channels:
            if one.sock in writable:
                self.deliver(one)
            if one.sock in readable and one.number in self.channels:
                self.collect(one)
        if self.listener in readable:
            self.admit()
        return self.source not in readable or self.hear()

    def admit(self) -> None:
        """Take a connection."""
        try:
            sock = self.listener.accept()[0]
        except OSError:
            return
        sock.setblocking(False)
        self.made += 1
        self.channels[self.made] = Channel(self.made, sock)
        self.tell("O", self.made)

    def collect(self, one: Channel) -> None:
        """Pass on what a connection sends."""
        try:
            data = one.sock.recv(min(CHUNK_BYTES, one.credit))
        except BlockingIOError:
            return
        except OSError:
            self.drop(one)
            return
        if data:
            one.credit -= len(data)
            self.tell("D", one.number, b2a_base64(data).strip())
            return
        one.has_said_all = True
        self.tell("E", one.number)
        self.close_if_over(one)

    def deliver(self, one: Channel) -> None:
        """Give a connection what waits for it."""
        try:
            count = one.sock.send(one.waiting)
        except BlockingIOError:
            return
        except OSError:
            self.drop(one)
            return
        del one.waiting[:count]
        self.tell("W", one.number, str(count).encode())
        self.end_if_heard(one)

    def hear(self) -> bool:
        """Read messages; False = there will be no more."""
        data = os.read(self.source, 2 * CHUNK_BYTES)
        lines = (self.line + data).split(b"\n")
        self.line = lines.pop()
        for line in lines:
            if line[:1] == b"~":
                fields = line[1:].split(b" ")
                one = self.channels.get(int(fields[1]))
                if one is not None:
                    self.obey(one, fields[0], fields[-1])
        return bool(data)

    def obey(self, one: Channel, kind: bytes, content: bytes) -> None:
        """Do what a message says."""
        if kind == b"D":
            one.waiting += a2b_base64(content)
        elif kind == b"W":
            one.credit += int(content)
        elif kind == b"E":
            one.has_heard_all = True
            self.end_if_heard(one)
        elif kind == b"R":
            self.forget(one)

    def end_if_heard(self, one: Channel) -> None:
        """Tell a connection that nothing more comes, once it has all that did."""
        if not one.has_heard_all or one.waiting:
            return
        try:
            one.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop(one)
            return
        self.close_if_over(one)

    def close_if_over(self, one: Channel) -> None:
        """Close a connection that ended in both directions."""
        if one.has_said_all and one.has_heard_all and not one.waiting:
            self.forget(one)

    def drop(self, one: Channel) -> None:
        """Close a connection that broke, and say so."""
        self.tell("R", one.number)
        self.forget(one)

    def forget(self, one: Channel) -> None:
        """Close a connection."""
        self.channels.pop(one.number, None)
        one.sock.close()

    def tell(self, kind: str, number: int, content: bytes = b"") -> None:
        """Write a message, however long its reader takes."""
        message = f"~{kind} {number} ".encode() + content + b"\n"
        while message:
            message = message[os.write(self.sink, message) :]


def main(port: int, source: int = 0, sink: int = 1) -> None:
    """Listen on a port, say which it is, and carry bytes until standard input ends."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(CONNECTIONS)
    listener.setblocking(False)
    relay = Relay(listener, source, sink)
    try:
        relay.tell("P", listener.getsockname()[1])
        relay.serve()
    except BrokenPipeError:
        pass
    finally:
        listener.close()
        for one in list(relay.channels.values()):
            relay.forget(one)


if __name__ == "__main__":
    main(int(sys.argv[1]))
