"""Plans and headers of jobs, read once per worker process and kept while they are used."""

from __future__ import annotations

import threading
from collections import OrderedDict

from benchflow_client.ledger.base import JobHeader, Ledger
from benchflow_client.schema.plan import Plan
from benchflow_client.store.base import Store
from benchflow_client.store.documents import read_document
from benchflow_client.store.layout import plan_key

_LIMIT = 64
"""Jobs kept at once; a plan is some kilobytes per task."""


class JobBook:
    """Finds what a wake-up refers to.

    Args:
        ledger: Knows the header.
        store: Holds the plan.
    """

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._store = store
        self._known: OrderedDict[str, tuple[JobHeader, Plan]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, job: str) -> tuple[JobHeader, Plan]:
        """Return a job's header and plan.

        Raises:
            JobNotFoundError: The ledger does not know the job.
            StoreError: The plan cannot be read.
        """
        with self._lock:
            if job in self._known:
                self._known.move_to_end(job)
                return self._known[job]
        found = self._ledger.header(job), read_document(self._store, plan_key(job), Plan)
        with self._lock:
            self._known[job] = found
            while len(self._known) > _LIMIT:
                self._known.popitem(last=False)
        return found

    def forget(self, job: str) -> None:
        """Drop what is known of a job."""
        with self._lock:
            self._known.pop(job, None)
