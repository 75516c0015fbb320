"""Brokers that a test may hurt: a Redis that is killed or frozen, a link that goes dumb, a RabbitMQ."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import amqp
import pytest
import redis
from kombu import Producer, Queue

from benchflow_client.broker import CONTROL_QUEUE, make_app
from benchflow_client.embedded.server import find_server
from benchflow_workers.sandbox.registry import KINDS
from tests.waiting import until

either_broker = pytest.mark.parametrize(
    "fleet", ["redis", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)], indirect=True
)
"""Runs a test of the fixture `fleet` twice: on a Redis, and on a RabbitMQ beside it."""

START_S = 20.0
"""Seconds a Redis may take to answer, on a busy machine."""

RABBIT_START_S = 90.0
"""Seconds a RabbitMQ may take: ten on two idle cores."""

RABBIT_USER = "bench"
_RABBIT_NODE = "bench@localhost"

_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
appendonly yes
appendfsync always
save ""
{more}
"""


class PrivateRedis:
    """A Redis of one test, which keeps its port, its password and its data while it is down.

    Args:
        folder: For its data and its log.
        more: More lines of its configuration.
    """

    def __init__(self, folder: Path, *, more: str = "") -> None:
        folder.mkdir()
        self._folder = folder
        self._port = free_port()
        self._password = secrets.token_hex(8)
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def client(self) -> Any:
        """Return a client that gives up at once."""
        return redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=2)

    def start(self) -> None:
        """Start it, with the data of before, and wait until it answers."""
        config = _CONFIG.format(
            port=self._port, password=self._password, folder=self._folder, more=self._more
        )
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(find_server()), "-"], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self._process.stdin is not None
        self._process.stdin.write(config.encode())
        self._process.stdin.close()
        until(self._answers, seconds=START_S)

    def kill(self) -> None:
        """End it without a warning."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=10)

    def freeze(self) -> None:
        """Let it hold its connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def reset_connections(self) -> int:
        """Close every connection to it but the one that asks, and return how many."""
        client = self.client
        return int(client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")) + int(
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        )

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


@contextmanager
def private_redis(folder: Path, *, more: str = "") -> Generator[PrivateRedis, None, None]:
    """Start a Redis and end it afterwards, in whatever state it is."""
    server = PrivateRedis(folder, more=more)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def repeat_messages(url: str, *, ledger_url: str, queue: str, times: int) -> int:
    """Put copies of every waiting message behind it, as a broker would deliver it again; returns how many wait."""
    with make_app(url, ledger_url=ledger_url) as app, app.connection_for_write() as connection:
        channel = connection.channel()
        found = list(iter(Queue(queue, channel=channel).get, None))
        producer = Producer(channel)
        for message in found:
            for _ in range(times):
                producer.publish(
                    message.body,
                    routing_key=queue,
                    headers=message.headers,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    **{name: message.properties.get(name) for name in ("correlation_id", "reply_to")},
                )
            message.requeue()
        channel.close()
    return len(found) * (times + 1)


class Link:
    """A TCP link to a server that can be made to swallow every byte without being closed.

    Args:
        url: The server's URL; `url` of the link is the same, by way of the link.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{port}")
        self._dumb: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def go_dumb(self) -> int:
        """Swallow what comes on the links there are, from both sides; new ones work. Returns how many."""
        with self._lock:
            self._dumb |= self._open
            return len(self._open) // 2

    def cut(self) -> int:
        """Close the links there are; new ones work. Returns how many."""
        with self._lock:
            # A thread that waits for an end sees it go; closing alone would not wake it.
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            return len(self._open) // 2

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._target) as far:
            with self._lock:
                self._open |= {near, far}
            with contextlib.suppress(OSError, ValueError):
                self._exchange({near: far, far: near})
            with self._lock:
                self._open -= {near, far}

    def _exchange(self, other: dict[socket.socket, socket.socket]) -> None:
        while True:
            for source in select.select(list(other), [], [])[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source not in self._dumb:
                    other[source].sendall(data)


@contextmanager
def link_to(url: str) -> Generator[Link, None, None]:
    """Put a link before a server, and take it away afterwards."""
    link = Link(url)
    try:
        yield link
    finally:
        link.close()


_RABBIT_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
distribution.listener.interface = 127.0.0.1
default_user = {user}
default_pass = {password}
log.console = true
log.console.level = warning
log.file = false
{more}
"""

_DEBIAN = "/usr/lib/rabbitmq/bin"
"""Where Debian keeps the programs; those on PATH change the user, the home and the log first."""


def rabbitmq_problem() -> str:
    """Return why no RabbitMQ can be started here; empty = one can."""
    missing = [name for name in ("rabbitmq-server", "rabbitmqctl", "epmd") if not _program(name)]
    return f"no {missing[0]}" if missing else ""


class RabbitNode:
    """A RabbitMQ of its own, on free ports of loopback, with all its files in one folder.

    Args:
        folder: For its data, its logs and its cookie.
        more: More lines of its configuration.
    """

    def __init__(self, folder: Path, *, more: str = "") -> None:
        folder.mkdir()
        self._folder = folder
        self._port, self._names, self._links = free_port(), free_port(), free_port()
        self._password = secrets.token_hex(8)
        (folder / "rabbitmq.conf").write_text(
            _RABBIT_CONFIG.format(port=self._port, user=RABBIT_USER, password=self._password, more=more)
        )
        (folder / "plugins").write_text("[].")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it and wait until it takes its user."""
        self._spawn(["epmd", "-port", str(self._names), "-address", "127.0.0.1"])
        self._spawn([_program("rabbitmq-server")])
        until(self._answers, seconds=RABBIT_START_S, what=lambda: (self._folder / "node.log").read_text())

    def url(self, vhost: str = "%2F", *, password: str | None = None) -> str:
        return f"amqp://{RABBIT_USER}:{password or self._password}@127.0.0.1:{self._port}/{vhost}"

    def empty(self) -> None:
        """Remove the messages of fleets that were here; their queues stay, as clients of this process know them."""
        for name in (*KINDS, CONTROL_QUEUE):
            with self._connection() as connection, contextlib.suppress(amqp.NotFound):
                connection.channel().queue_purge(name)

    @contextmanager
    def impatient(self, *, after_s: float) -> Generator[None, None, None]:
        """Break off with consumers that come inside the block and take longer over a message."""
        say = "application:set_env(rabbit, consumer_timeout, {}), application:set_env(rabbit, channel_tick_interval, {})."
        self.control("eval", say.format(round(after_s * 1000), 500))
        try:
            yield
        finally:
            self.control("eval", say.format(30 * 60 * 1000, 60_000))

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` and return what it says."""
        done = subprocess.run(
            [_program("rabbitmqctl"), "--quiet", "--node", _RABBIT_NODE, *arguments],
            env=self._environ, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    def stop(self) -> None:
        """End the node, then the program that knows its name."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(timeout=RABBIT_START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)

    @property
    def _environ(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            **os.environ,
            "HOME": folder,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._names),
            "RABBITMQ_NODENAME": _RABBIT_NODE,
            "RABBITMQ_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(self._links),
            # Erlang in the foreground, in the process that was started; one core, and no busy waiting.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _spawn(self, command: list[str]) -> None:
        with (self._folder / "node.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environ, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes.append(process)

    def _answers(self) -> bool:
        try:
            with self._connection():
                return True
        except (OSError, amqp.AMQPError):
            return False

    def _connection(self) -> amqp.Connection:
        return amqp.Connection(
            f"127.0.0.1:{self._port}", userid=RABBIT_USER, password=self._password, connect_timeout=2
        )


@contextmanager
def rabbit_node(folder: Path, *, more: str = "") -> Generator[RabbitNode, None, None]:
    """Start a RabbitMQ and end it afterwards."""
    node = RabbitNode(folder, more=more)
    try:
        node.start()
        yield node
    finally:
        node.stop()


def _program(name: str) -> str:
    """Return a program's path; empty = there is none."""
    return shutil.which(f"{_DEBIAN}/{name}") or shutil.which(name) or ""


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
