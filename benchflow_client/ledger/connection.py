"""A connection to Redis whose failures are one error that says what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from benchflow_client.addresses import REDIS_FORM, address_of, check_redis, cluster_refusal, sentinel_refusal
from benchflow_client.errors import BrokerError

_RETRIES = 3
"""How often a call is repeated whose connection was lost; each of ours may safely come twice."""

_CLIENT_TIMEOUT_S, _CLIENT_RETRIES = 6.0, 1
"""A person waits for a client: about 12 s for a Redis that is silent, a dead connection made anew in between."""


def connect(url: str, *, timeout_s: float = 10.0, retries: int = _RETRIES) -> redis.Redis:
    """Return a client for a Redis URL; nothing is sent yet.

    Args:
        url: A single Redis or Valkey.
        timeout_s: Seconds to wait for an answer; then the connection counts as dead.
        retries: How often a call that failed so is repeated.

    Raises:
        BrokerError: The URL is not that of a single Redis.
    """
    check_redis(url, variable="The address of the ledger")
    try:
        return redis.Redis.from_url(
            url.replace("redis+socket://", "unix://", 1),
            socket_timeout=timeout_s,
            socket_connect_timeout=5,
            health_check_interval=25,
            decode_responses=True,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), retries),
        )
    except ValueError as error:
        raise BrokerError(
            f"The address of the Redis is not understood: {error}.",
            hint=f"Write it as {REDIS_FORM}.",
        ) from error


class RedisConnection:
    """A client and the address it talks to.

    Args:
        client: Client with `decode_responses=True`, as `connect` returns it.
        address: Where it is, for error texts; no credentials.
    """

    def __init__(self, client: redis.Redis, *, address: str = "the address given") -> None:
        # Untyped on purpose: the library's return types cover both of its decoding modes.
        self.client: Any = client
        self._address = address

    @classmethod
    def at(cls, url: str) -> RedisConnection:
        """Return a client's connection for a broker URL; nothing is sent yet."""
        client = connect(url, timeout_s=_CLIENT_TIMEOUT_S, retries=_CLIENT_RETRIES)
        return cls(client, address=address_of(url))

    @classmethod
    def of_worker(cls, url: str) -> RedisConnection:
        """Return a connection that waits long for a silent Redis: nobody waits for a worker."""
        return cls(connect(url), address=address_of(url))

    def check(self) -> None:
        """Check that a server answers, and that it is one that can keep a ledger.

        Raises:
            BrokerError: It does not answer, or is part of a cluster or a Sentinel.
        """
        with self.reachable() as client:
            client.ping()
            try:
                mode = client.info("server").get("redis_mode", "standalone")
            except redis.exceptions.NoPermissionError:
                return  # who may not ask finds out with the first step that touches two keys
        if mode == "cluster":
            raise cluster_refusal(f"The Redis at {self._address}")
        if mode == "sentinel":
            raise sentinel_refusal(f"The server at {self._address}")

    @contextmanager
    def reachable(self) -> Generator[Any, None, None]:
        """Yield the client; what it raises becomes a `BrokerError`."""
        try:
            yield self.client
        except redis.AuthenticationError as error:
            raise BrokerError(
                f"The Redis at {self._address} refused the password.",
                hint="Check it in BENCHFLOW_BROKER_URL (or BENCHFLOW_LEDGER_URL). Nothing was submitted.",
            ) from error
        except _CLUSTER_ERRORS as error:
            raise cluster_refusal(f"The Redis at {self._address}") from error
        except redis.RedisError as error:
            raise BrokerError(
                f"The Redis at {self._address} does not answer ({_reason(error)}).",
                hint="Start one (`bench up`, `docker compose up -d`) or set BENCHFLOW_BROKER_URL "
                "(BENCHFLOW_LEDGER_URL beside a RabbitMQ).",
            ) from error


_CLUSTER_ERRORS = (
    redis.exceptions.ClusterDownError,
    redis.exceptions.ClusterCrossSlotError,
    redis.exceptions.AskError,
    redis.exceptions.MovedError,
)

_REASONS: tuple[tuple[type[redis.RedisError], str], ...] = (
    (redis.TimeoutError, "timed out"),
    (redis.ConnectionError, "connection refused or lost"),
    (redis.exceptions.OutOfMemoryError, "out of memory"),
    (redis.exceptions.ReadOnlyError, "it is a read-only replica"),
)


def _reason(error: redis.RedisError) -> str:
    for kind, text in _REASONS:
        if isinstance(error, kind):
            return text
    return str(error).splitlines()[0] if str(error) else type(error).__name__
