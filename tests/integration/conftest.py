"""What several integration tests share: workers started and ended one by one, and a RabbitMQ started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import RabbitNode, rabbit_node
from tests.worker_fleets import ROOT, WorkerFleet, worker_fleet

RABBIT_CONFIG = ROOT / "deploy/rabbitmq/rabbitmq.conf"


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[WorkerFleet]:
    """No worker yet, on an empty database, with an empty store; see `tests.brokers.either_broker`."""
    broker = None
    if getattr(request, "param", "redis") == "rabbitmq":
        node: RabbitNode = request.getfixturevalue("rabbit")
        node.empty()
        broker = node.url()
    with worker_fleet(tmp_path, redis_url, broker=broker) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitNode]:
    """A private RabbitMQ of this test run, set up as the docs say; for tests with the mark `rabbitmq`."""
    with rabbit_node(tmp_path_factory.mktemp("brokers") / "rabbit", more=RABBIT_CONFIG.read_text()) as node:
        yield node
