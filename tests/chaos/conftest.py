"""How long and with which chance the chaos goes on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos_rig import Battle, ChaosFleet, battle_on, chaos_fleet
from tests.forked_workers import WorkerSource, worker_source

DEFAULT_S = 12.0
"""Seconds of faults in every run of the tests; the rest of the minute is for what comes after."""

DEFAULT_SEED = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--chaos-seconds", type=float, default=DEFAULT_S, help="seconds of mixed faults")
    group.addoption("--chaos-seed", type=int, default=DEFAULT_SEED, help="seed of the mixed faults; -1 = any")


@pytest.fixture(scope="session")
def source() -> Iterator[WorkerSource]:
    """What workers are forked from."""
    with worker_source() as source:
        yield source


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str, source: WorkerSource) -> Iterator[ChaosFleet]:
    """A fleet on an empty Redis, without workers."""
    with chaos_fleet(tmp_path, redis_url, source) as fleet:
        fleet.redis.flushdb()
        yield fleet


@pytest.fixture
def battle(fleet: ChaosFleet) -> Iterator[Battle]:
    """A client of the fleet."""
    with battle_on(fleet) as battle:
        yield battle


@pytest.fixture
def chaos_seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--chaos-seconds", default=DEFAULT_S))


@pytest.fixture
def chaos_seed(request: pytest.FixtureRequest) -> int:
    seed = int(request.config.getoption("--chaos-seed", default=DEFAULT_SEED))
    return random.SystemRandom().randrange(1 << 32) if seed < 0 else seed
