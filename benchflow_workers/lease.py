"""Keeps the leases of the trials this process runs, on one thread of its own.

A lease that is lost, a job that is cancelled and a worker that drains all reach the
trial the same way: its lease gets a reason to stop, and the trial is told.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum

from benchflow_client.errors import BenchflowError
from benchflow_client.ledger.base import Ledger, RenewStatus

logger = logging.getLogger(__name__)

RENEWALS_PER_TTL = 4
"""A lease is renewed so often that three renewals may fail before it runs out."""

LONGEST_PAUSE_S = 3.0
"""A renewal also tells whether the job was cancelled, and people wait for that."""

PHASE_PAUSE_S = 0.2
"""Phases are recorded at most so often: one that ends sooner is not worth a message."""

PHASES_WAITING = 1000
"""Phases not shown yet; more are dropped: a broker that is silent for long has other news to tell."""

PhaseListener = Callable[[str], object]
"""Told the phases that last, from a thread of its own; may block, must not raise."""


class Stop(StrEnum):
    """Why a running trial must end now."""

    LOST = "lost"  # somebody else may run it: write nothing to the ledger
    CANCELLED = "cancelled"  # a person stopped the job: commit a cancelled receipt
    DRAINING = "draining"  # this worker stops: give the trial back


class Lease:
    """One held lease; `stop` is set at most once and never taken back.

    Args:
        job: The job.
        index: The trial's position in the plan.
        fence: What the ledger granted it with.
        on_phase: Told the phases that last.
        asked_at: When the claim was sent (`time.monotonic`), since the ledger may count from
            then: its answer may come late, or only to a repeated question. None = now.
    """

    def __init__(
        self, job: str, index: int, fence: int, *, on_phase: PhaseListener, asked_at: float | None = None
    ) -> None:
        self.job = job
        self.index = index
        self.fence = fence
        self.on_phase = on_phase
        self.renewed_at = time.monotonic() if asked_at is None else asked_at
        self._phase = ""
        self._stop: Stop | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def stop(self) -> Stop | None:
        """Why the trial must end; None = it may go on."""
        return self._stop

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Call back once, from any thread, when there is a reason to stop; at once if there is one."""
        with self._lock:
            if self._stop is None:
                self._callbacks.append(callback)
                return
        callback()

    def end(self, reason: Stop) -> None:
        """Give the trial a reason to stop; the first reason stands."""
        with self._lock:
            if self._stop is not None:
                return
            self._stop = reason
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def take_phase(self) -> str:
        """Return the phase not recorded yet, and forget it; empty = none."""
        with self._lock:
            phase, self._phase = self._phase, ""
        return phase

    def set_phase(self, phase: str) -> None:
        """Note what the trial is doing; the keeper records it soon."""
        with self._lock:
            self._phase = phase


class LeaseKeeper:
    """Renews every held lease until it is released.

    Args:
        ledger: Ledger with a client of its own, so that a busy one cannot delay renewals.
        ttl_s: Life of a lease in seconds.
    """

    def __init__(self, ledger: Ledger, *, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self._ledger = ledger
        self._leases: set[Lease] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pause = threading.Event()
        self._is_closed = False
        self._is_draining = False
        self._shown: queue.Queue[tuple[PhaseListener, str] | None] = queue.Queue(PHASES_WAITING)
        self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)
        self._thread.start()
        self._shower = threading.Thread(target=self._show, name="phases", daemon=True)
        self._shower.start()

    @property
    def held(self) -> int:
        """Return how many leases are held."""
        with self._lock:
            return len(self._leases)

    @contextmanager
    def hold(
        self, job: str, index: int, fence: int, *, on_phase: PhaseListener, asked_at: float | None = None
    ) -> Generator[Lease, None, None]:
        """Keep a granted lease alive inside the block, and pass on the phases that last.

        It counts from `asked_at`, the moment before its claim was sent; None = now.
        """
        lease = Lease(job, index, fence, on_phase=on_phase, asked_at=asked_at)
        with self._lock:
            self._leases.add(lease)
            is_draining = self._is_draining
        if is_draining:
            lease.end(Stop.DRAINING)
        try:
            yield lease
        finally:
            with self._lock:
                self._leases.discard(lease)

    def note_phase(self, lease: Lease, phase: str) -> None:
        """Record what a trial is doing, without waiting for it."""
        lease.set_phase(phase)
        self._wake.set()

    def drain(self) -> None:
        """Tell every trial, running or to come, that this worker stops."""
        with self._lock:
            self._is_draining = True
            leases = tuple(self._leases)
        for lease in leases:
            lease.end(Stop.DRAINING)

    def close(self) -> None:
        """Stop renewing; safe to call twice."""
        self._is_closed = True
        self._wake.set()
        self._pause.set()
        self._thread.join(timeout=self.ttl_s)
        with contextlib.suppress(queue.Full):
            self._shown.put_nowait(None)
        # Whoever waits for a silent broker is left behind: it ends with the process.
        self._shower.join(timeout=PHASE_PAUSE_S)

    def _keep(self) -> None:
        interval = min(self.ttl_s / RENEWALS_PER_TTL, LONGEST_PAUSE_S)
        due = time.monotonic() + interval
        while not self._is_closed:
            if self._wake.wait(max(0.0, due - time.monotonic())) and not self._is_closed:
                self._pause.wait(PHASE_PAUSE_S)
            self._wake.clear()
            with self._lock:
                leases = tuple(self._leases)
            try:
                self._record_phases(leases)
                if time.monotonic() >= due:
                    due = time.monotonic() + interval
                    self._renew(leases)
            except BenchflowError as error:
                logger.warning("leases not renewed: %s", error, extra={"action": "renew_failed"})
                self._end_overdue(leases)

    def _record_phases(self, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            if phase := lease.take_phase():
                self._ledger.set_phase(lease.job, lease.index, fence=lease.fence, phase=phase)
                # Elsewhere: whoever is told may wait for a broker, and leases must not wait with it.
                with contextlib.suppress(queue.Full):
                    self._shown.put_nowait((lease.on_phase, phase))

    def _show(self) -> None:
        while (item := self._shown.get()) is not None:
            tell, phase = item
            tell(phase)

    def _renew(self, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            asked_at = time.monotonic()
            status = self._ledger.renew(lease.job, lease.index, fence=lease.fence, ttl_s=self.ttl_s)
            if status is RenewStatus.LOST:
                lease.end(Stop.LOST)
                continue
            lease.renewed_at = asked_at
            if status is RenewStatus.CANCELLED:
                lease.end(Stop.CANCELLED)

    def _end_overdue(self, leases: tuple[Lease, ...]) -> None:
        """End what could not be renewed for a whole lease: by now somebody else may run it."""
        now = time.monotonic()
        for lease in leases:
            if now - lease.renewed_at > self.ttl_s:
                lease.end(Stop.LOST)
