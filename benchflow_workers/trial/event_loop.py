"""The event loop of one trial: it ends in bounded time, whatever a provider's library left running in it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

TASKS_GRACE_S: Final = 2.0
"""Seconds that tasks have to end once they are cancelled; what may take longer has had its own time."""

THREADS_GRACE_S: Final = 30.0
"""Seconds that blocking calls have to return: a copy of files may be on its way."""

T = TypeVar("T")


def run_to_end(
    main: Coroutine[Any, Any, T],
    *,
    tasks_grace_s: float = TASKS_GRACE_S,
    threads_grace_s: float = THREADS_GRACE_S,
) -> T:
    """Run a coroutine in a loop of its own and return its result.

    `asyncio.run` waits without end for a task that swallows its cancellation, and for a
    thread whose call never returns: one dead session of a provider would hold the slot
    for ever. Here both are left behind after their grace, with a line in the log.

    Args:
        main: What is run.
        tasks_grace_s: Seconds for tasks that it left behind.
        threads_grace_s: Seconds for blocking calls that it left behind.

    Raises:
        Whatever the coroutine raises.
    """
    loop = asyncio.new_event_loop()
    threads = _Threads(thread_name_prefix="trial")
    loop.set_default_executor(threads)
    try:
        return loop.run_until_complete(main)
    finally:
        _end_tasks(loop, tasks_grace_s)
        if threads.is_used:
            _end_threads(threads, threads_grace_s)
        loop.close()


class _Threads(ThreadPoolExecutor):
    """Threads for blocking calls; most short trials need none, and then none has to be waited for."""

    is_used = False

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.is_used = True
        return super().submit(*args, **kwargs)


def _end_tasks(loop: asyncio.AbstractEventLoop, grace_s: float) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, stuck = loop.run_until_complete(asyncio.wait(left, timeout=grace_s))
        for task in stuck:
            logger.warning("%s ignores its cancellation and is left", task, extra={"action": "task_left"})
    loop.run_until_complete(loop.shutdown_asyncgens())


def _end_threads(threads: ThreadPoolExecutor, grace_s: float) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    ending = threading.Thread(target=threads.shutdown, name="trial-threads", daemon=True)
    ending.start()
    ending.join(grace_s)
    if ending.is_alive():
        logger.warning("a blocking call does not return and is left", extra={"action": "thread_left"})
