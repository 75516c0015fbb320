"""A TCP link to Redis that acts at the very moment a chosen command passes."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK = 1 << 20


@dataclass
class Rule:
    """What happens when a command passes that holds all of some words.

    Attributes:
        words: All of them stand in the command.
        act: Called once.
        is_executed: Whether the server executes the command before; its answer is never delivered.
        fired: Set once it happened.
    """

    words: tuple[bytes, ...]
    act: Callable[[], object]
    is_executed: bool
    fired: threading.Event = field(default_factory=threading.Event)

    def matches(self, data: bytes) -> bool:
        return not self.fired.is_set() and all(word in data for word in self.words)


class Wire:
    """A link to a server; `url` is the server's URL by way of the link.

    Args:
        url: The server's URL.
        delay_s: Seconds that everything takes longer, one way.
    """

    def __init__(self, url: str, *, delay_s: float = 0.0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{parts.port}", f":{self._listener.getsockname()[1]}")
        self._delay_s = delay_s
        self._rules: list[Rule] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def before(self, *words: bytes | str, act: Callable[[], object]) -> Rule:
        """Act instead of passing a command on."""
        return self._add(words, act, is_executed=False)

    def after(self, *words: bytes | str, act: Callable[[], object]) -> Rule:
        """Act when a command has been executed and before its answer arrives."""
        return self._add(words, act, is_executed=True)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _add(self, words: tuple[bytes | str, ...], act: Callable[[], object], *, is_executed: bool) -> Rule:
        encoded = tuple(word.encode() if isinstance(word, str) else word for word in words)
        rule = Rule(encoded, act, is_executed)
        self._rules.append(rule)
        return rule

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), near, socket.create_connection(self._target) as far:
            while True:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(_CHUNK)
                    if not data:
                        return
                    if self._delay_s:
                        time.sleep(self._delay_s)
                    if source is far:
                        near.sendall(data)
                    elif not self._pass_on(data, near, far):
                        return

    def _pass_on(self, data: bytes, near: socket.socket, far: socket.socket) -> bool:
        """Pass on what came, unless the first rule that matches acts; returns whether the link goes on."""
        rule = next((rule for rule in self._rules if rule.matches(data)), None)
        if rule is None or rule.is_executed:
            far.sendall(data)
        if rule is None:
            return True
        if rule.is_executed:
            answer = far.recv(_CHUNK)
            if answer.startswith(b"-"):  # refused, e.g. a script the server does not know yet
                near.sendall(answer)
                return True
        rule.fired.set()
        rule.act()
        return False


@contextmanager
def wire_to(url: str, *, delay_s: float = 0.0) -> Generator[Wire, None, None]:
    """Put a link before a server, and take it away afterwards."""
    wire = Wire(url, delay_s=delay_s)
    try:
        yield wire
    finally:
        wire.close()


def sha_of(script: str) -> str:
    """Return the name under which Redis knows a script."""
    return hashlib.sha1(script.encode()).hexdigest()
