"""Where broker and ledger may be; every other address is refused with the next step."""

from __future__ import annotations

import pytest

from benchflow_client.addresses import Addresses, address_of, broker_kind, fleet_addresses
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.connection import connect
from benchflow_client.settings import load

REDIS_URL = "redis://:word@host:6379/0"
RABBIT_URL = "amqp://ana:word@host:5672/bench"


def test_one_redis_is_broker_and_ledger() -> None:
    assert fleet_addresses(REDIS_URL, None) == Addresses(REDIS_URL, REDIS_URL)


@pytest.mark.parametrize("broker", [RABBIT_URL, "redis://other:6379/0"])
def test_ledger_may_be_another_redis_than_the_broker(broker: str) -> None:
    assert fleet_addresses(broker, REDIS_URL) == Addresses(broker, REDIS_URL)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("rediss://h/0", "Redis"),
        ("unix:///run/redis.sock", "Redis"),
        ("redis+socket:///run/redis.sock", "Redis"),
        ("amqps://h//", "RabbitMQ"),
        ("pyamqp://h//", "RabbitMQ"),
    ],
)
def test_kind_of_a_broker_is_in_its_address(url: str, kind: str) -> None:
    assert broker_kind(url) == kind


def test_rabbitmq_without_a_redis_says_what_to_set() -> None:
    with pytest.raises(BrokerError, match="BENCHFLOW_LEDGER_URL is not set") as caught:
        fleet_addresses(RABBIT_URL, None)

    assert "redis://:PASSWORD@HOST:6379/0" in caught.value.hint


def test_ledger_without_a_broker_says_what_to_set() -> None:
    settings = load({"BENCHFLOW_LEDGER_URL": REDIS_URL, "HOME": "/root"})

    with pytest.raises(BrokerError, match="BENCHFLOW_BROKER_URL is not") as caught:
        settings.addresses()

    assert "Set BENCHFLOW_BROKER_URL too" in caught.value.hint


def test_nothing_set_means_the_embedded_fleet() -> None:
    assert load({"HOME": "/root"}).addresses() is None


@pytest.mark.parametrize("url", ["amqp://h//", "http://h", "host:6379"])
def test_ledger_must_be_a_redis(url: str) -> None:
    with pytest.raises(BrokerError, match="BENCHFLOW_LEDGER_URL must name a Redis"):
        fleet_addresses(RABBIT_URL, url)


@pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster", "redis-cluster"])
def test_cluster_is_refused_wherever_it_is_named(scheme: str) -> None:
    for call in (
        lambda: fleet_addresses(f"{scheme}://h:7000", None),
        lambda: fleet_addresses(RABBIT_URL, f"{scheme}://h:7000"),
        lambda: connect(f"{scheme}://h:7000"),
    ):
        with pytest.raises(BrokerError, match="Redis Cluster, which is not supported") as caught:
            call()
        assert "Use a single Redis or Valkey" in caught.value.hint


def test_sentinel_is_refused() -> None:
    with pytest.raises(BrokerError, match="Redis Sentinel") as caught:
        fleet_addresses("sentinel://a:26379;sentinel://b:26379", None)

    assert "its primary's address" in caught.value.hint


def test_password_is_not_in_what_people_read() -> None:
    assert address_of(RABBIT_URL) == "amqp://host:5672/bench"
    assert address_of("redis://host/0") == "redis://host/0"


def test_port_that_is_no_number_is_named() -> None:
    with pytest.raises(BrokerError, match="not understood"):
        connect("redis://host:port/0")
