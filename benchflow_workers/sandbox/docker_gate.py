"""A semaphore for coroutines of several event loops, so that one engine gets few starts at once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import TracebackType


class StartGate:
    """Lets at most `slots` holders through at a time, in the order they came.

    Safe to share between threads that each run an event loop of their own,
    which `asyncio.Semaphore` is not; no thread is blocked while waiting.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._lock = threading.Lock()
        self._waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            loop = asyncio.get_running_loop()
            waiter = (loop, loop.create_future())
            self._waiters.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _withdraw(self, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> None:
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                return
        # Granted and cancelled at once; where the grant is still on its way, it finds the future done.
        if not waiter[1].cancelled():
            self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiters:
                loop, future = self._waiters.popleft()
                try:
                    loop.call_soon_threadsafe(self._grant, future)
                except RuntimeError:  # that loop has closed, its waiter is gone with it
                    continue
                return
            self._free += 1

    def _grant(self, future: asyncio.Future[None]) -> None:
        if future.done():
            self._release()
        else:
            future.set_result(None)
