"""Names, queues and settings of the Celery side; the one place that configures it."""

from __future__ import annotations

from typing import Any, Final

from celery import Celery
from celery.backends.redis import RedisBackend

from benchflow_client.errors import BrokerError

TRIAL: Final = "trial"
"""Celery name of the task that runs one trial; also its name in Flower."""

SUMMARY: Final = "summary"
"""Celery name of the chord body."""

CONTROL_QUEUE: Final = "control"
"""Queue of chord bodies; every worker without a queue list serves it."""

LIFETIME_S: Final = 14 * 24 * 3600
"""How long chord keys live without a finished trial; a job may be paused for days."""

LONGEST_TRIAL_S: Final = 7 * 24 * 3600
"""Redis redelivers a message that was not acknowledged for so long; leases act far earlier."""

_TRANSPORT: dict[str, Any] = {
    "visibility_timeout": LONGEST_TRIAL_S,
    "socket_timeout": 30,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 25,
    "unacked_restore_interval": 10,
    "unacked_restore_throttle": 1,
    "queue_order_strategy": "priority",
}

_CONFIG: dict[str, Any] = {
    # A message is a wake-up: it is acknowledged when its trial has ended, and may come twice.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    # A dead connection must not end trials: their leases say who owns them.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_deduplicate_successful_tasks": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "result_backend_always_retry": True,
    "result_expires": LIFETIME_S,
    "result_chord_expires": LIFETIME_S,
    "result_extended": False,
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "result_accept_content": ["json"],
    "task_default_queue": CONTROL_QUEUE,
    "broker_transport_options": _TRANSPORT,
    "result_backend_transport_options": {"socket_timeout": 30, "socket_connect_timeout": 5},
    # What Flower needs. No event for a message that waits: few do, and each would cost a round trip.
    "worker_send_task_events": True,
    "task_send_sent_event": False,
    "worker_enable_remote_control": True,
    "worker_hijack_root_logger": False,
    "broker_heartbeat": 0,
}


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


def make_app(url: str) -> Celery:
    """Return a configured Celery app for a broker URL; nothing is sent yet.

    Raises:
        BrokerError: The URL is of a kind that cannot work.
    """
    scheme = url.partition("://")[0]
    if scheme not in {"redis", "rediss", "redis+socket", "unix"}:
        raise BrokerError(
            f"A broker of kind {scheme!r} is not supported.",
            hint="Set BENCHFLOW_BROKER_URL to redis://:PASSWORD@HOST:6379/0 (or rediss:// for TLS).",
        )
    url = url.replace("unix://", "redis+socket://", 1)
    app = Celery("benchflow", broker=url, backend=url, set_as_current=False)
    app.conf.update(_CONFIG)
    quiet = f"{QuietRedisBackend.__module__}:{QuietRedisBackend.__name__}"
    app.conf.override_backends = dict.fromkeys(("redis", "rediss", "redis+socket"), quiet)
    app.loader.override_backends = app.conf.override_backends
    return app
