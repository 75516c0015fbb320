"""A worker's core for each test: a job of one task tried twice, unless the test asks for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stations import Station, station
from tests.worlds import make_world

MakeStation = Callable[..., Station]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeStation]:
    """Make a station; `ttl_s` is the lease's life, the rest is as `make_world` takes it."""
    with ExitStack() as stack:

        def made(*, ttl_s: float = 30.0, **world: object) -> Station:
            return stack.enter_context(station(make_world(tmp_path, **{"tries": 2, **world}), ttl_s=ttl_s))

        yield made


@pytest.fixture
def here(make: MakeStation) -> Station:
    return make()
