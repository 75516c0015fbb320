"""Removes sandboxes that no live lease stands for: leftovers of dead workers, and nothing else.

A sandbox is looked at only when it carries this fleet's label. It is removed when its
trial's lease has ended or went to a later attempt, whoever made it: when a worker starts,
once a minute, and when a job ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchflow_client.errors import BenchflowError, BrokerError
from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.sandboxes import SandboxBook, SandboxRecord
from benchflow_workers.sandbox.base import SandboxProvider, SandboxRef

logger = logging.getLogger(__name__)


LOOK_S = 2.0
"""Seconds between two looks whether a job has ended."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What providers and records say of this fleet's sandboxes, as seen from one host."""

    live: tuple[SandboxRef, ...]  # under a live lease
    orphans: tuple[SandboxRef, ...]  # exist, but no lease stands for them
    stale: tuple[SandboxRecord, ...]  # recorded here, but neither existing nor leased


class Reaper:
    """Compares providers, records and leases, and removes what is left over.

    Args:
        providers: Providers of this host.
        ledger: Knows the leases.
        book: Knows what was begun.
        fleet: Only sandboxes with this label are looked at.
        interval_s: Seconds between two sweeps.
    """

    def __init__(
        self,
        providers: Sequence[SandboxProvider],
        ledger: Ledger,
        book: SandboxBook,
        *,
        fleet: str,
        interval_s: float,
    ) -> None:
        self._providers = providers
        self._ledger = ledger
        self._book = book
        self._fleet = fleet
        self._interval_s = interval_s
        self._open_jobs: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)

    def start(self) -> None:
        """Sweep now and again and again, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop sweeping; safe to call twice."""
        self._closed.set()

    def audit(self) -> Audit:
        """Return what there is, changing nothing.

        Raises:
            BrokerError: The ledger cannot be reached: nothing is an orphan then.
        """
        return asyncio.run(self._audit())

    def sweep(self) -> int:
        """Remove every orphan, erase every stale record, and return how many there were."""
        return asyncio.run(self._sweep())

    def _run(self) -> None:
        while True:
            try:
                self.sweep()
            except BenchflowError as error:
                logger.warning("sandboxes not swept: %s", error, extra={"action": "sweep_failed"})
            if self._wait():
                return

    def _wait(self) -> bool:
        """Wait for the next sweep, which a job's end brings forward; returns whether the reaper is closed."""
        due = time.monotonic() + self._interval_s
        while time.monotonic() < due:
            if self._closed.wait(min(LOOK_S, self._interval_s)):
                return True
            try:
                open_jobs = set(self._ledger.open_jobs())
            except BrokerError:
                continue
            ended, self._open_jobs = self._open_jobs - open_jobs, open_jobs
            if ended:
                break
        return self._closed.is_set()

    async def _sweep(self) -> int:
        found = await self._audit()
        by_kind = {provider.kind: provider for provider in self._providers}
        for ref in found.orphans:
            logger.info(
                "sandbox %s of trial %s removed: no lease stands for it", ref.id[:12], ref.labels.get("bf.trial", "?"),
                extra={"action": "sandbox_reaped"},
            )  # fmt: skip
            await by_kind[ref.kind].remove(ref)
        removed = {(ref.kind, ref.id) for ref in found.orphans}
        for record in self._book.read():
            if record in found.stale or (record.kind, record.id) in removed:
                self._book.erase(record.name)
        return len(found.orphans) + len(found.stale)

    async def _audit(self) -> Audit:
        live: list[SandboxRef] = []
        orphans: list[SandboxRef] = []
        stale: list[SandboxRecord] = []
        # Records first: a sandbox made in between is then found by its provider, not missed.
        records = self._book.read()
        for provider in self._providers:
            refs = await provider.list({"bf.fleet": self._fleet})
            for ref in refs:
                (live if self._is_leased(ref) else orphans).append(ref)
            place = await provider.place()
            existing = {ref.id for ref in refs}
            stale.extend(
                record
                for record in records
                if (record.kind, record.place) == (provider.kind, place)
                and record.id not in existing
                and not self._ledger.is_live(record.job, record.index, fence=record.fence)
            )
        return Audit(tuple(live), tuple(orphans), tuple(stale))

    def _is_leased(self, ref: SandboxRef) -> bool:
        try:
            index, fence = int(ref.labels["bf.index"]), int(ref.labels["bf.fence"])
        except (KeyError, ValueError):
            return False
        return self._ledger.is_live(ref.labels.get("bf.job", ""), index, fence=fence)
