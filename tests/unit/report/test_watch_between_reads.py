"""What a watcher sees while the fleet goes on between two questions to the ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.handle import Fleet, JobHandle
from benchflow_client.ledger.base import JobProgress
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.watch import status_parts
from tests.stations import station
from tests.worlds import make_world


class BusyLedger(MemoryLedger):
    """A ledger of which trials are claimed right after its counts were read."""

    def __init__(self, inner: MemoryLedger, *, claims: int) -> None:
        self.__dict__.update(inner.__dict__)
        self.claims = claims

    def progress(self, job: str) -> JobProgress:
        found = super().progress(job)
        held = {trial.index for trial in super().running(job)}
        free = [index for index in range(found.header.total) if index not in held]
        for index in free[: self.claims]:
            super().claim(job, index, owner="w", ttl_s=60, max_attempts=3)
        return found


@pytest.mark.parametrize(("claims", "running", "waiting"), [(0, 1, 4), (2, 3, 2)])
def test_a_status_line_adds_up_although_trials_start_while_it_is_made(
    tmp_path: Path, claims: int, running: int, waiting: int
) -> None:
    with station(make_world(tmp_path, tries=5)) as here:
        here.memory.claim(here.job, 0, owner="w", ttl_s=60, max_attempts=3)
        busy = BusyLedger(here.memory, claims=claims)
        fleet = Fleet(busy, here.world.store, here.dispatcher, "")

        view = next(JobHandle(here.job, fleet).watch())

    assert (view.running, view.waiting, dict(view.phases)) == (running, waiting, {"claimed": running})
    assert view.finished + view.running + view.waiting == view.total
    assert status_parts(view)[0] == f"running {running} (claimed {running})"
