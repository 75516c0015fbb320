"""How long a silent Redis is waited for: people wait for clients, nobody waits for a worker."""

from __future__ import annotations

from benchflow_client.ledger.connection import RedisConnection

URL = "redis://box:6379/0"


def patience_s(connection: RedisConnection) -> float:
    made = connection.client.connection_pool.connection_kwargs
    return float(made["socket_timeout"] * (made["retry"]._retries + 1))


def test_client_gives_up_within_a_quarter_of_a_minute_but_tries_a_dead_connection_again() -> None:
    connection = RedisConnection.at(URL)

    assert patience_s(connection) <= 15.0
    assert connection.client.connection_pool.connection_kwargs["retry"]._retries >= 1


def test_worker_waits_longer_than_a_client() -> None:
    assert patience_s(RedisConnection.of_worker(URL)) > patience_s(RedisConnection.at(URL))
