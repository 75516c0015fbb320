"""The gateway itself: one HTTP server on the loopback of the worker, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from benchflow_client.errors import WorkerError
from benchflow_client.ledger.rates import Rates
from benchflow_workers.gateway.forwarding import Forwarder
from benchflow_workers.gateway.grants import Grant, Grants
from benchflow_workers.gateway.journal import Journal
from benchflow_workers.gateway.outward import outward
from benchflow_workers.gateway.pacing import Pacer
from benchflow_workers.gateway.prices import Prices

__all__ = ["Gateway", "PublicPlace", "listen_publicly"]

logger = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
REQUEST_LIMIT_BYTES: Final = 64 << 20
"""More than any of the providers takes."""

_START_S: Final = 30.0
_STOP_S: Final = 10.0
_QUIET_S: Final = 5.0  # for calls of an agent that was just ended


@dataclass(frozen=True, slots=True)
class PublicPlace:
    """Where a gateway is reached from other hosts.

    Attributes:
        listener: Socket that listens there.
        url: What others call it.
    """

    listener: socket.socket
    url: str


def listen_publicly(place: str, url: str) -> PublicPlace:
    """Take the place where others reach the gateway of this worker.

    Args:
        place: `HOST:PORT`.
        url: What others call it.

    Raises:
        WorkerError: It is taken, or not this host's.
    """
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return PublicPlace(socket.create_server((host, int(port)), family=family), url)
    except OSError as error:
        raise WorkerError(
            f"The model gateway cannot listen on {place}: {error.strerror or error}.",
            hint="Set BENCHFLOW_GATEWAY_LISTEN to a free port of this host; each worker process needs its own.",
        ) from error


class Gateway:
    """Passes calls on for whoever holds a token; started with the first grant.

    Args:
        prices: What calls cost.
        public: Where it is reached from other hosts; None = not at all.
        rates: How often the whole fleet may ask models; None = there are no limits.
    """

    def __init__(
        self, prices: Prices, public: PublicPlace | None = None, *, rates: Rates | None = None
    ) -> None:
        self._prices = prices
        self._public = public
        self._rates = rates
        self._grants = Grants()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port on the worker's loopback; it listens from the first call on.

        Raises:
            WorkerError: It could not be started.
        """
        self.start()
        return self._port

    @property
    def public_url(self) -> str:
        """What other hosts call it; empty = they do not reach it."""
        return "" if self._public is None else self._public.url

    def start(self) -> None:
        """Start it where it does not run yet.

        Raises:
            WorkerError: It could not be started.
        """
        with self._lock:
            if self._thread is None:
                self._start()

    @contextmanager
    def granted(self, grant: Grant) -> Generator[Grant, None, None]:
        """Make a token good for as long as the block runs.

        Guarantees: at its end the token is good for nothing, and every call is counted and on
        disk, but for one that did not end within a few seconds.

        Raises:
            WorkerError: The gateway could not be started.
        """
        self.start()
        grant.file.parent.mkdir(parents=True, exist_ok=True)
        self._grants.add(grant)
        try:
            yield grant
        finally:
            self._grants.withdraw(grant)
            grant.wait_until_quiet(_QUIET_S)
            self._journal.flush()

    def close(self) -> None:
        """Stop; calls that are being made are cut. Safe to call twice."""
        with self._lock:
            if self._thread is None or self._loop is None or self._stop is None:
                return
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_STOP_S)
            self._journal.close()
            self._thread = None

    def _start(self) -> None:
        self._journal = Journal()
        ready: threading.Event = threading.Event()
        problem: list[OSError] = []
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready, problem)), name="gateway", daemon=True
        )
        thread.start()
        if not ready.wait(_START_S) or problem:
            why = problem[0] if problem else f"it did not start within {_START_S:g} s"
            raise WorkerError(
                f"The model gateway cannot listen on {HOST}: {why}.", hint="Look at the worker's host."
            )
        self._thread = thread

    async def _serve(self, ready: threading.Event, problem: list[OSError]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with outward() as providers:
            pacer = Pacer(self._rates)
            forwarder = Forwarder(providers, self._grants, self._prices, self._journal, pacer)
            app = web.Application(client_max_size=REQUEST_LIMIT_BYTES)
            app.router.add_route("*", "/{path:.*}", forwarder.handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
            await runner.setup()
            try:
                site = web.TCPSite(runner, HOST, 0)
                await site.start()
                self._port = runner.addresses[0][1]
                if self._public is not None:
                    await web.SockSite(runner, self._public.listener).start()
                ready.set()
                await self._stop.wait()
            except OSError as error:
                problem.append(error)
                ready.set()
            finally:
                await runner.cleanup()
                await pacer.close()
