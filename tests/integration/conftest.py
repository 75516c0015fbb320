"""Real workers for tests that start and end them one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_fleets import WorkerFleet, worker_fleet


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[WorkerFleet]:
    """No worker yet, on an empty database, with an empty store."""
    with worker_fleet(tmp_path, redis_url) as fleet:
        yield fleet
