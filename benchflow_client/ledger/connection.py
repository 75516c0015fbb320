"""A connection to Redis whose failures are one error that says what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from benchflow_client.errors import BrokerError


def connect(url: str, *, timeout_s: float = 30.0) -> redis.Redis:
    """Return a client for a broker URL; nothing is sent yet."""
    try:
        return redis.Redis.from_url(
            url.replace("redis+socket://", "unix://", 1),
            socket_timeout=timeout_s,
            socket_connect_timeout=5,
            health_check_interval=25,
            decode_responses=True,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), 3),
        )
    except ValueError as error:
        raise BrokerError(
            f"The broker address is not understood: {error}.",
            hint="Set BENCHFLOW_BROKER_URL to redis://:PASSWORD@HOST:6379/0 (or rediss:// for TLS).",
        ) from error


def address_of(url: str) -> str:
    """Return a broker URL without its credentials, for people."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rsplit('@', 1)[-1]}"


class RedisConnection:
    """A client and the address it talks to.

    Args:
        client: Client with `decode_responses=True`, as `connect` returns it.
        address: Where it is, for error texts; no credentials.
    """

    def __init__(self, client: redis.Redis, *, address: str = "the broker") -> None:
        # Untyped on purpose: the library's return types cover both of its decoding modes.
        self.client: Any = client
        self._address = address

    @classmethod
    def at(cls, url: str) -> RedisConnection:
        """Return a connection for a broker URL; nothing is sent yet."""
        return cls(connect(url), address=address_of(url))

    @contextmanager
    def reachable(self) -> Generator[Any, None, None]:
        """Yield the client; what it raises becomes a `BrokerError`."""
        try:
            yield self.client
        except redis.AuthenticationError as error:
            raise BrokerError(
                f"The broker at {self._address} refused the password.",
                hint="Check the password in BENCHFLOW_BROKER_URL. Nothing was submitted.",
            ) from error
        except redis.RedisError as error:
            raise BrokerError(
                f"The broker at {self._address} does not answer ({_reason(error)}).",
                hint="Start one (`bench up`, `docker compose up -d`) or set BENCHFLOW_BROKER_URL.",
            ) from error


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
