"""Repairs jobs: publishes what was lost, releases what may start, gathers what is finished.

A thread in every worker; one is active at a time by a lock with a lifetime, and two at
once do no harm, since every step is idempotent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import BenchflowError
from benchflow_client.ledger.base import JobProgress, JobState, Ledger
from benchflow_workers.jobs import JobBook
from benchflow_workers.leftovers import Leftovers

logger = logging.getLogger(__name__)

UNCLAIMED_S = 5.0
"""A message nobody claimed for so long is published again when its queue holds too few."""

_FOR_EVER_S = 1e9

GATHER_GRACE_S = 5.0
"""The chord has this long to run its body before the reconciler does."""


class Reconciler:
    """Looks at every open job again and again.

    Args:
        ledger: The ledger.
        dispatcher: Publishes what is due.
        jobs: Plans and headers.
        leftovers: Removes what dead workers left in the broker.
        interval_s: Seconds between two looks.
        is_leader: Returns whether this worker may act now; asked before each look.
    """

    def __init__(
        self,
        ledger: Ledger,
        dispatcher: Dispatcher,
        jobs: JobBook,
        leftovers: Leftovers,
        *,
        interval_s: float,
        is_leader: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._leftovers = leftovers
        self._interval_s = interval_s
        self._is_leader = is_leader
        self._ended_at: dict[str, float] = {}
        self._short: set[str] = set()  # queues that held too few messages at the last look
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        """Begin looking, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; safe to call twice."""
        self._closed.set()

    def look(self, *, now: float | None = None) -> None:
        """Look at every open job once.

        Args:
            now: Seconds that only grow, for tests; None = this process's own. The ledger's
                clock is never compared with this host's, which may be hours off.
        """
        open_jobs = [self._ledger.progress(job) for job in self._ledger.open_jobs()]
        names = {progress.header.job for progress in open_jobs}
        self._ended_at = {job: since for job, since in self._ended_at.items() if job in names}
        lost = self._queues_with_losses(open_jobs)
        for progress in open_jobs:
            job = progress.header.job
            try:
                unclaimed_s = UNCLAIMED_S if progress.header.queue in lost else _FOR_EVER_S
                self._repair(progress, unclaimed_s, time.monotonic() if now is None else now)
            except BenchflowError as error:
                logger.warning(
                    "job %s not repaired: %s", job, error, extra={"action": "not_repaired", "job": job}
                )
        for queue in {progress.header.queue for progress in open_jobs}:
            self._dispatcher.admit(queue, self._jobs)
        if swept := self._leftovers.sweep():
            logger.info("%d messages of dead workers removed", swept, extra={"action": "leftovers_removed"})

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            try:
                if self._is_leader():
                    self.look()
            except BenchflowError as error:
                logger.warning("no repair this time: %s", error, extra={"action": "reconcile_failed"})

    def _queues_with_losses(self, open_jobs: Iterable[JobProgress]) -> set[str]:
        """Return the queues that hold fewer messages than trials were released to them.

        A message between queue and claim is missing for a moment: a queue that is not
        empty counts when it is short at two looks.
        """
        released: Counter[str] = Counter()
        for progress in open_jobs:
            released[progress.header.queue] += progress.released
        depths = {queue: self._dispatcher.depth(queue) for queue, count in released.items() if count}
        short = {queue for queue, depth in depths.items() if depth < released[queue]}
        lost = {queue for queue in short if not depths[queue] or queue in self._short}
        self._short = short
        return lost

    def _repair(self, progress: JobProgress, unclaimed_s: float, now: float) -> None:
        if progress.state is JobState.CLOSED:
            return
        # The header of the progress is the newest; a cached one may be of before a reopening.
        header, job = progress.header, progress.header.job
        _, plan = self._jobs.get(job)
        if progress.state in {JobState.CANCELLING, JobState.STOPPING}:
            self._dispatcher.end_waiting(header)
        overdue = self._ledger.overdue(job, unclaimed_s=unclaimed_s)
        if overdue:
            logger.info(
                "%d trials of %s published again", len(overdue), job,
                extra={"action": "trials_republished", "job": job},
            )  # fmt: skip
            self._dispatcher.publish(header, plan, overdue)
        if self._is_gathering_late(progress, now):
            logger.info(
                "job %s gathered by the reconciler", job, extra={"action": "job_regathered", "job": job}
            )
            self._dispatcher.gather(header)

    def _is_gathering_late(self, progress: JobProgress, now: float) -> bool:
        """Return whether all trials of a job were seen finished a while ago."""
        job = progress.header.job
        if progress.finished < progress.header.total:
            self._ended_at.pop(job, None)
            return False
        return now - self._ended_at.setdefault(job, now) > GATHER_GRACE_S
