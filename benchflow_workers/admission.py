"""Lets trials start: after each that ends, when a worker joins, and when time alone admits more."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import BenchflowError
from benchflow_workers.jobs import JobBook

logger = logging.getLogger(__name__)

FAILED_PAUSE_S = 1.0
"""Seconds until a round that failed is tried again."""


class Admitter:
    """Publishes what may start on the queues of a worker.

    Args:
        dispatcher: Chooses, by the rules of the whole fleet, and publishes.
        jobs: Plans and headers.
    """

    def __init__(self, dispatcher: Dispatcher, jobs: JobBook) -> None:
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._due: dict[str, float] = {}  # queue -> when to look again
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="admission", daemon=True)

    def start(self, queues: Iterable[str]) -> None:
        """Look at these queues now, and from then on whenever time admits more."""
        now = time.monotonic()
        with self._changed:
            self._due.update(dict.fromkeys(queues, now))
        self._thread.start()

    def close(self) -> None:
        """Stop looking; safe to call twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def admit(self, queue: str) -> int:
        """Publish what may start on a queue now and return how many.

        Raises:
            BrokerError: The broker failed; what was chosen is published by the reconciler.
        """
        count, wait_s = self._dispatcher.admit(queue, self._jobs)
        with self._changed:
            self._due.pop(queue, None)
            if wait_s is not None:
                self._due[queue] = time.monotonic() + wait_s
                self._changed.notify()
        return count

    def _run(self) -> None:
        while (queue := self._next()) is not None:
            try:
                self.admit(queue)
            except BenchflowError as error:
                logger.warning("no admission this time: %s", error, extra={"action": "not_admitted"})
                with self._changed:
                    self._due[queue] = time.monotonic() + FAILED_PAUSE_S

    def _next(self) -> str | None:
        """Wait for the next queue that is due; None = closed."""
        with self._changed:
            while not self._is_closed:
                queue = min(self._due, key=self._due.__getitem__, default=None)
                wait_s = None if queue is None else self._due[queue] - time.monotonic()
                if queue is not None and wait_s is not None and wait_s <= 0:
                    return queue
                self._changed.wait(wait_s)
        return None
