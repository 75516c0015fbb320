"""Where a fleet's broker and ledger are: one Redis for both, or a RabbitMQ and a Redis beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchflow_client.errors import BrokerError

REDIS: Final = "Redis"
"""The kind of a broker that is the ledger too, as people call it; Valkey counts as one."""

RABBITMQ: Final = "RabbitMQ"
"""The kind of a broker that only carries messages."""

REDIS_FORM: Final = "redis://:PASSWORD@HOST:6379/0 (or rediss:// for TLS)"
"""How the address of a Redis is written, for hints."""

AMQP_FORM: Final = "amqp://USER:PASSWORD@HOST:5672/VHOST (or amqps:// for TLS)"
"""How the address of a RabbitMQ is written, for hints."""

_KINDS: Final = {
    "redis": REDIS,
    "rediss": REDIS,
    "redis+socket": REDIS,
    "unix": REDIS,
    "amqp": RABBITMQ,
    "amqps": RABBITMQ,
    "pyamqp": RABBITMQ,
}

_SINGLE_SERVER: Final = (
    "A ledger step and a queue touch several keys at once, so they need one primary server.",
    f"Use a single Redis or Valkey, with replicas if you like, and give its primary's address: {REDIS_FORM}.",
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a fleet, credentials included.

    Attributes:
        broker: URL of what carries messages.
        ledger: URL of the Redis that keeps the ledger and what trials return to their chord.
    """

    broker: str
    ledger: str


def fleet_addresses(broker_url: str, ledger_url: str | None) -> Addresses:
    """Return where broker and ledger are; nothing is sent.

    Args:
        broker_url: A Redis or a RabbitMQ.
        ledger_url: A Redis; None = the broker, which must be one then.

    Raises:
        BrokerError: An address is of a kind that cannot work, or the ledger's is missing.
    """
    kind = broker_kind(broker_url)
    if ledger_url is not None:
        check_redis(ledger_url, variable="BENCHFLOW_LEDGER_URL")
    elif kind != REDIS:
        raise BrokerError(
            f"BENCHFLOW_BROKER_URL names a {kind}, and BENCHFLOW_LEDGER_URL is not set: {kind} carries "
            "messages, but keeps neither the state of trials nor their results.",
            hint=f"Set BENCHFLOW_LEDGER_URL to a Redis, on clients and workers alike: {REDIS_FORM}.",
        )
    return Addresses(broker_url, broker_url if ledger_url is None else ledger_url)


def broker_kind(url: str) -> str:
    """Return `REDIS` or `RABBITMQ`.

    Raises:
        BrokerError: The URL is of neither kind.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    _refuse_several_servers(scheme, variable="BENCHFLOW_BROKER_URL")
    if scheme not in _KINDS:
        raise BrokerError(
            f"A broker of kind {scheme!r} is not supported.",
            hint=f"Set BENCHFLOW_BROKER_URL to {REDIS_FORM}, or to {AMQP_FORM}.",
        )
    return _KINDS[scheme]


def check_redis(url: str, *, variable: str) -> None:
    """Check that a URL is that of a single Redis.

    Raises:
        BrokerError: It is not.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    _refuse_several_servers(scheme, variable=variable)
    if _KINDS.get(scheme) != REDIS:
        raise BrokerError(
            f"{variable} must name a Redis, and its address begins with {scheme!r}.",
            hint=f"Set it to {REDIS_FORM}.",
        )


def cluster_refusal(address: str) -> BrokerError:
    """Return the error for a server that is a node of a Redis Cluster."""
    why, hint = _SINGLE_SERVER
    return BrokerError(f"{address} is a node of a Redis Cluster, which is not supported. {why}", hint=hint)


def sentinel_refusal(address: str) -> BrokerError:
    """Return the error for a server that is a Redis Sentinel."""
    why, hint = _SINGLE_SERVER
    return BrokerError(
        f"{address} is a Redis Sentinel, which only tells where a Redis is; asking it is not supported. {why}",
        hint=hint,
    )


def address_of(url: str) -> str:
    """Return a URL without its credentials, for people."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rsplit('@', 1)[-1]}"


def _refuse_several_servers(scheme: str, *, variable: str) -> None:
    if "cluster" in scheme:
        raise cluster_refusal(f"What {variable} names")
    if "sentinel" in scheme:
        raise sentinel_refusal(f"What {variable} names")
