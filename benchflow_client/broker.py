"""Names, queues and settings of the Celery side; the one place that configures it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from amqp.exceptions import AccessRefused, AMQPError
from celery import Celery
from celery.backends.redis import RedisBackend
from kombu.exceptions import ChannelError, KombuError
from redis.exceptions import RedisError

from benchflow_client.addresses import RABBITMQ, REDIS, address_of, broker_kind, fleet_addresses
from benchflow_client.errors import BrokerError
from benchflow_client.schema.ids import kind_of_queue

TRIAL: Final = "trial"
"""Celery name of the task that runs one trial; also its name in Flower."""

SUMMARY: Final = "summary"
"""Celery name of the chord body."""

CONTROL_QUEUE: Final = "control"
"""Queue of chord bodies; every worker without a queue list serves it."""

BROKER_ERRORS: Final = (RedisError, KombuError, AMQPError, OSError)
"""What a broker of either kind may raise at any call."""

LIFETIME_S: Final = 14 * 24 * 3600
"""How long chord keys live without a finished trial; a job may be paused for days."""

LONGEST_TRIAL_S: Final = 7 * 24 * 3600
"""Redis redelivers a message that was not acknowledged for so long; leases act far earlier."""

ANSWER_S: Final = 10
"""A broker that is silent for so long counts as gone: a link may die without being closed."""

LOOK_S: Final = 5
"""How often kombu looks for answers of Redis that are overdue; it gives up at the third look."""

CONNECT_S: Final = 5
"""Seconds to open a connection."""

HEARTBEAT_S: Final = 10
"""RabbitMQ and worker miss each other after two of these without a sign of life."""

_NOT_FOUND: Final = "404"
"""AMQP's code for a queue that does not exist; kombu says it for Redis too, as text."""

_REDIS_TRANSPORT: dict[str, Any] = {
    "visibility_timeout": LONGEST_TRIAL_S,
    "socket_timeout": ANSWER_S,
    "socket_connect_timeout": CONNECT_S,
    "socket_keepalive": True,
    "health_check_interval": LOOK_S,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "queue_order_strategy": "benchflow_client.broker:FewestServersFirst",
}

_AMQP_TRANSPORT: dict[str, Any] = {
    # A message that was not stored is an error, not a loss.
    "confirm_publish": True,
    "connect_timeout": CONNECT_S,
    "read_timeout": ANSWER_S,
    "write_timeout": ANSWER_S,
}

_CONFIG: dict[str, Any] = {
    # A message is a wake-up: it is acknowledged when its trial has ended, and may come twice.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    # A dead connection must not end trials: their leases say who owns them.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_deduplicate_successful_tasks": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # A channel that the broker closed (RabbitMQ does so when a trial outlasts its consumer_timeout) must not end
    # the worker.
    "broker_channel_error_retry": True,
    "result_backend_always_retry": True,
    "result_expires": LIFETIME_S,
    "result_chord_expires": LIFETIME_S,
    "result_extended": False,
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "result_accept_content": ["json"],
    "task_default_queue": CONTROL_QUEUE,
    "broker_connection_timeout": CONNECT_S,
    "redis_socket_timeout": ANSWER_S,
    "redis_socket_connect_timeout": CONNECT_S,
    "redis_socket_keepalive": True,
    "redis_backend_health_check_interval": 25,
    # What Flower needs. No event for a message that waits: few do, and each would cost a round trip.
    "worker_send_task_events": True,
    "task_send_sent_event": False,
    "worker_enable_remote_control": True,
    "worker_hijack_root_logger": False,
}

_REDIS_CONFIG: dict[str, Any] = {
    "broker_transport_options": _REDIS_TRANSPORT,
    "broker_heartbeat": 0,
    # A worker takes no more than it runs; RabbitMQ's own count of what is not acknowledged does the same.
    "worker_disable_prefetch": True,
}

_AMQP_CONFIG: dict[str, Any] = {
    "broker_transport_options": _AMQP_TRANSPORT,
    "broker_heartbeat": HEARTBEAT_S,
    # Celery 5.7 would raise the count again from the thread of a trial, on the connection that another one reads:
    # frames got mixed up and the connection was lost again. What comes twice is refused by the ledger anyway.
    "worker_enable_prefetch_count_reduction": False,
}


class FewestServersFirst:
    """Order in which a worker looks into its queues on Redis.

    Summaries come first: otherwise that of a small job waits until the trials of all the
    others have started. Then those that fewer workers serve, which other work, that any
    worker can take, would keep waiting for ever: `docker.gpu` before `docker`.
    """

    def __init__(self) -> None:
        self._queues: list[str] = []

    def update(self, queues: Iterable[str]) -> None:
        """Take the queues that are served now."""
        self._queues = sorted(queues, key=_rank)

    def consume(self, count: int) -> list[str]:
        """Return the queues to look into, in order."""
        return self._queues[:count]

    def rotate(self, queue: str) -> str:
        """Keep the order, whichever queue the last message came from."""
        return queue


def _rank(queue: str) -> tuple[bool, bool, str]:
    return queue != CONTROL_QUEUE, kind_of_queue(queue) == queue, queue


class QuietRedisBackend(RedisBackend):  # type: ignore[misc]
    """Result backend that never subscribes to results.

    Nobody waits on a single trial's result: progress is read from the ledger. The
    stock backend would open a pub/sub channel per task, 10,000 for a large job.
    """

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Do nothing where the base class subscribes."""

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        """Return the result unwatched."""
        return result


def make_app(url: str, *, ledger_url: str | None = None) -> Celery:
    """Return a configured Celery app; nothing is sent yet.

    Args:
        url: The broker: a Redis or a RabbitMQ.
        ledger_url: The Redis that gathers what trials return; None = the broker.

    Raises:
        BrokerError: An address is of a kind that cannot work, or the ledger's is missing.
    """
    at = fleet_addresses(url, ledger_url)
    app = Celery("benchflow", broker=_spelled(at.broker), backend=_spelled(at.ledger), set_as_current=False)
    app.conf.update(_CONFIG)
    if broker_kind(url) == REDIS:
        app.conf.update(_REDIS_CONFIG)
    else:
        app.conf.update(_AMQP_CONFIG)
    quiet = f"{QuietRedisBackend.__module__}:{QuietRedisBackend.__name__}"
    app.conf.override_backends = dict.fromkeys(("redis", "rediss", "redis+socket"), quiet)
    app.loader.override_backends = app.conf.override_backends
    return app


def queue_depth(app: Celery, queue: str) -> int:
    """Return how many messages wait in a queue; one that nobody has used yet is empty.

    Raises:
        BROKER_ERRORS: The broker does not answer.
    """
    with app.connection_for_read() as connection:
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except ChannelError as error:
            if str(error.reply_code) != _NOT_FOUND:
                raise
            return 0


def check_rabbitmq(app: Celery) -> str:
    """Check that a RabbitMQ takes this user, and return its version; empty = the broker is none.

    Raises:
        BrokerError: It does not answer or refuses.
    """
    url = app.conf.broker_url
    if broker_kind(url) != RABBITMQ:
        return ""
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=2 * CONNECT_S)
            return str(connection.connection.server_properties.get("version", "of an unknown version"))
    except AccessRefused as error:
        raise BrokerError(
            f"The RabbitMQ at {address_of(url)} refused the user or the password.",
            hint="Check both in BENCHFLOW_BROKER_URL; / in a password is written %2F.",
        ) from error
    except BROKER_ERRORS as error:
        raise BrokerError(
            f"The RabbitMQ at {address_of(url)} does not answer ({error}).",
            hint="Start it, or correct host, port and virtual host in BENCHFLOW_BROKER_URL.",
        ) from error


def _spelled(url: str) -> str:
    """Return a URL as Celery writes it."""
    return url.replace("unix://", "redis+socket://", 1)
