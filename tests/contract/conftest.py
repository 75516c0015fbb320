"""The ledger, over every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.memory import MemoryLedger


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
