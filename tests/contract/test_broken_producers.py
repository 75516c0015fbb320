"""A producer that lost its connection in the pool keeps no message back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from benchflow_client.broker import make_app
from benchflow_client.dispatch import Dispatcher, job_header
from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.plan import Plan
from tests.worlds import make_world

Publish = Callable[[Dispatcher, JobHeader, Plan], None]


def publish_trial(dispatcher: Dispatcher, header: JobHeader, plan: Plan) -> None:
    dispatcher.publish(header, plan, [0])


def publish_body(dispatcher: Dispatcher, header: JobHeader, plan: Plan) -> None:
    del plan
    dispatcher.gather(header)


@pytest.mark.parametrize(("publish", "is_body"), [(publish_trial, False), (publish_body, True)])
def test_a_message_is_sent_although_the_pool_has_a_channel_without_a_connection(
    redis_url: str, tmp_path: Path, publish: Publish, is_body: bool
) -> None:
    """So it is found after a restart of Redis with kombu 5.7, and stays so until another thread repairs it."""
    plan = make_world(tmp_path).plan
    header = job_header(plan, owner="ana")
    with redis.Redis.from_url(redis_url) as client, make_app(redis_url) as app:
        client.flushdb()
        with app.producer_pool.acquire(block=True) as producer:
            producer.connection.default_channel.connection = None

        publish(Dispatcher(app, RedisLedger.at(redis_url)), header, plan)

        assert client.llen("control" if is_body else plan.sandbox) == 1
        client.flushdb()
