"""What several suites share: the ledger, over every implementation; a gateway and the models behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.memory import MemoryLedger

if TYPE_CHECKING:  # another user's Python, which tests sandboxes too, has no web server either
    from benchflow_workers.gateway.server import Gateway
    from benchflow_workers.testing_models import ScriptedModels


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    if request.param == "memory":
        yield MemoryLedger()
        return
    # Not at the top: sandboxes are also tested by another user's Python, for which redis was not installed.
    from benchflow_client.ledger.connection import RedisConnection, connect
    from benchflow_client.ledger.redis import RedisLedger

    client = connect(request.getfixturevalue("redis_url"))
    client.flushdb()
    yield RedisLedger(RedisConnection(client))
    client.close()


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    from benchflow_workers.testing_models import scripted_models

    with scripted_models() as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """Yield a gateway that listens already and knows no prices of its own."""
    from benchflow_workers.gateway.prices import Prices
    from benchflow_workers.gateway.server import Gateway

    made = Gateway(Prices())
    made.start()
    yield made
    made.close()
