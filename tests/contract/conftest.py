"""The ledger, over every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.redis import RedisLedger


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    if request.param == "memory":
        yield MemoryLedger()
        return
    url = request.getfixturevalue("redis_url")
    client = connect(url)
    client.flushdb()
    yield RedisLedger(RedisConnection(client))
    client.close()
