"""LiteLLM as a child of the worker, for providers that speak nothing their caller does.

To the gateway it is a provider like any other: tokens, records and budgets stay the gateway's.
It takes a dozen seconds to start and some 400 MB, so there is one for each place calls go to,
started by the first trial that needs it and kept for the next ones.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from weakref import WeakSet

from benchflow_client.errors import AgentError, MissingExtraError
from benchflow_workers.gateway.target import Translation

__all__ = ["Translated", "Translators", "check_installed"]

logger = logging.getLogger(__name__)

READY_S: Final = 180.0
_LOOK_S: Final = 0.1
_ASK_S: Final = 5.0
_END_S: Final = 10.0
_HOST: Final = "127.0.0.1"
_SECRET: Final = "BENCHFLOW_UPSTREAM_"
_NEEDED: Final = ("litellm", "fastapi", "uvicorn")
_PROGRAM: Final = (sys.executable, "-I", str(Path(__file__).with_name("translator_program.py")))
_KEPT: Final = frozenset({
    "PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY",
    "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
})  # fmt: skip
"""Variables of the worker that a translator has too: how to reach others, and no key."""

_FIXED: Final = {
    "LITELLM_MODE": "PRODUCTION",  # else it reads files named .env
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks another host for prices at its start
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
}


class _User:
    """Somebody who may call a translator; it is in use for as long as this is kept."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A running translator, for as long as this is kept.

    Attributes:
        url: Its address, without a version.
        key: What it takes as a key.
    """

    url: str
    key: str = field(repr=False)
    _user: _User = field(repr=False)


def check_installed(what: str) -> None:
    """Refuse what needs a translator where there is none.

    Args:
        what: What needs it, as the beginning of a sentence.

    Raises:
        MissingExtraError: LiteLLM or a part of it is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise MissingExtraError(what, "litellm")


class Translators:
    """All translators of a worker; safe to use from any thread.

    Args:
        folder: Where their configurations and logs go.
        environ: Variables of the worker.
        program: What is run, with a file and a port as further arguments.
        ready_s: How long a start may take.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        *,
        program: Sequence[str] = _PROGRAM,
        ready_s: float = READY_S,
    ) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if name in _KEPT}
        self._program = program
        self._ready_s = ready_s
        self._lock = threading.Lock()
        self._running: dict[Translation, _Translator] = {}

    def running(self, translation: Translation) -> Translated:
        """Return the translator to a place, started where it does not run.

        Another one that nobody uses is ended first: each takes hundreds of megabytes.

        Raises:
            AgentError: `agent.provider_failed`: it does not start.
        """
        with self._lock:
            found = self._running.get(translation)
            if found is None:
                self._end_unused()
                found = _Translator(translation, self._folder / secrets.token_hex(4))
                self._running[translation] = found
            user = found.add_user()
        return found.started((*self._program,), self._environ, self._ready_s, user)

    def close(self) -> None:
        """End all of them; safe to call twice."""
        with self._lock:
            for translator in self._running.values():
                translator.end()
            self._running.clear()

    def _end_unused(self) -> None:
        for translation, translator in list(self._running.items()):
            if not translator.is_used:
                translator.end()
                del self._running[translation]


class _Translator:
    """One of them."""

    def __init__(self, translation: Translation, folder: Path) -> None:
        self._translation = translation
        self._folder = folder
        self._users: WeakSet[_User] = WeakSet()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._key = f"sk-{secrets.token_urlsafe(32)}"
        self._port = 0

    @property
    def is_used(self) -> bool:
        """Whether somebody may still call it."""
        return bool(self._users)

    def add_user(self) -> _User:
        """Return a new user of it."""
        user = _User()
        self._users.add(user)
        return user

    def started(
        self, program: tuple[str, ...], environ: Mapping[str, str], ready_s: float, user: _User
    ) -> Translated:
        """Return it once it answers."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start(program, environ)
                self._wait_until_ready(ready_s)
        return Translated(f"http://{_HOST}:{self._port}", self._key, user)

    def end(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        if process.stdin is not None:
            process.stdin.close()

    def _start(self, program: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.end()
        self._folder.mkdir(parents=True, exist_ok=True)
        named = {f"{_SECRET}{name.upper()}": value for name, value in self._translation.parameters}
        config = self._folder / "config.json"
        config.unlink(missing_ok=True)
        with _private(config) as file:
            file.write(json.dumps(_configuration(self._translation)).encode())
        self._port = _free_port()
        variables = {**environ, **_FIXED, **named, "LITELLM_MASTER_KEY": self._key, "HOME": str(self._folder)}
        log = self._folder / "output.log"
        log.unlink(missing_ok=True)
        with _private(log) as output:
            self._process = subprocess.Popen(
                [*program, str(config), str(self._port)],
                stdin=subprocess.PIPE, stdout=output, stderr=output, env=variables, cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        logger.info(
            "LiteLLM started for %s models", self._translation.prefix, extra={"action": "translator_started"}
        )

    def _wait_until_ready(self, ready_s: float) -> None:
        """Wait for its first answer.

        Raises:
            AgentError: `agent.provider_failed`: it ended, or does not answer in time; it is ended then.
        """
        deadline = time.monotonic() + ready_s
        while not _answers(self._port):
            code = None if self._process is None else self._process.poll()
            if code is None and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                continue
            self.end()
            why = (
                f"it does not answer within {ready_s:g} s"
                if code is None
                else f"it ended with exit code {code}"
            )
            raise AgentError(
                "agent.provider_failed",
                f"LiteLLM, which translates calls to {self._translation.prefix} models, did not start: {why}.",
                hint=f"See {self._folder / 'output.log'} on the worker's host.",
            )


def _configuration(translation: Translation) -> dict[str, object]:
    """Return what LiteLLM is told: every model at one place; values come from variables."""
    given = {name: f"os.environ/{_SECRET}{name.upper()}" for name, _ in translation.parameters}
    return {
        "model_list": [
            {"model_name": "*", "litellm_params": {"model": f"{translation.prefix}/*", **given}},
        ],
        # Retries and waits are the gateway's; what a provider does not know is left out of a request.
        "litellm_settings": {"drop_params": True, "telemetry": False, "num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ASK_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health/liveliness")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _private(path: Path) -> BinaryIO:
    """Open a new file that nobody else reads."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
