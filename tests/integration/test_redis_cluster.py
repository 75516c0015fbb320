"""A Redis that is part of a cluster is refused where it is met, with the reason and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.errors import BrokerError
from tests.brokers import PrivateRedis, free_port, private_redis
from tests.worker_fleets import WorkerFleet


@pytest.fixture(params=["a node without slots", "a cluster of one"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateRedis]:
    more = f"cluster-enabled yes\ncluster-port {free_port()}"
    with private_redis(tmp_path / "node", more=more) as server:
        if request.param == "a cluster of one":
            server.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        yield server


def test_client_and_worker_refuse_a_node_of_a_cluster(node: PrivateRedis, tmp_path: Path) -> None:
    fleet = WorkerFleet(tmp_path, node.url)
    (tmp_path / "store").mkdir()

    with fleet.client() as client, pytest.raises(BrokerError) as caught:
        client.submit(fleet.spec(tries=1))
    code, said = fleet.refused()

    assert "is a node of a Redis Cluster, which is not supported" in caught.value.message
    assert "Use a single Redis or Valkey" in caught.value.hint
    assert code == 3
    assert "is a node of a Redis Cluster" in said
    assert "Traceback" not in said
