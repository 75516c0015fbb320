"""What workers took from a real Redis and never acknowledged: what goes, what stays, and who may come late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from benchflow_client.broker import CONTROL_QUEUE, make_app
from benchflow_client.dispatch import Dispatcher, job_header
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.base import JobHeader, Return
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Receipt
from benchflow_workers.leftovers import GRACE_S, Leftovers
from tests.worlds import make_world


@dataclass
class Desk:
    """A broker with jobs, a consumer that takes their messages, and sweepers with a clock of their own."""

    url: str
    folder: Path
    app: Celery
    ledger: RedisLedger
    client: Any
    open_connections: ExitStack
    now: float = 1000.0
    taken: list[Any] = field(default_factory=list)

    @property
    def dispatcher(self) -> Dispatcher:
        return Dispatcher(self.app, self.ledger)

    def open(self, *, tries: int = 3) -> tuple[JobHeader, Plan]:
        """Open a job whose trials are all in the queue."""
        folder = self.folder / str(len(list(self.folder.iterdir())))
        plan = make_world(folder, tries=tries, concurrency=tries).plan.model_copy(update={"sandbox": "null"})
        header = job_header(plan, owner="ana")
        self.dispatcher.open(header, plan)
        return header, plan

    def take(self, count: int, *, queue: str = "null") -> list[Any]:
        """Take messages as a worker does, without acknowledging them."""
        connection = self.open_connections.enter_context(self.app.connection_for_read())
        channel = connection.channel()
        channel.queue_declare(queue)
        messages = [channel.basic_get(queue) for _ in range(count)]
        self.taken += messages
        return messages

    def sweeper(self, **options: Any) -> Leftovers:
        return Leftovers(RedisConnection.at(self.url), self.ledger, clock=lambda: self.now, **options)

    def lease(self, job: str, index: int) -> int:
        return self.ledger.claim(job, index, owner="w", ttl_s=600, max_attempts=9).fence

    def finish(self, job: str, index: int, *, fence: int) -> None:
        self.ledger.commit(job, Receipt(index, "passed", 1.0, "", 1, 0.1, None, None, ""), fence=fence)

    def left(self) -> int:
        """Return how many deliveries stand in the broker; its two records of them agree."""
        tags = set(self.client.hkeys("unacked"))
        assert tags == set(self.client.zrange("unacked_index", 0, -1))
        return len(tags)


@pytest.fixture
def desk(tmp_path: Path, redis_url: str) -> Iterator[Desk]:
    with (
        redis.Redis.from_url(redis_url, decode_responses=True) as client,
        make_app(redis_url) as app,
        ExitStack() as connections,
    ):
        client.flushdb()
        yield Desk(redis_url, tmp_path, app, RedisLedger.at(redis_url), client, connections)
        client.delete("unacked", "unacked_index")
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()


def test_delivery_of_a_running_trial_stays_however_old_it_is(desk: Desk) -> None:
    header, _ = desk.open(tries=2)
    desk.take(2)
    desk.lease(header.job, 0)
    desk.lease(header.job, 1)
    sweeper = desk.sweeper()

    for _ in range(5):
        assert sweeper.sweep() == 0
        desk.now += GRACE_S - 1

    assert desk.left() == 2


def test_delivery_of_a_finished_trial_goes_after_the_grace(desk: Desk) -> None:
    header, _ = desk.open(tries=3)
    desk.take(2)
    desk.lease(header.job, 0)
    desk.finish(header.job, 1, fence=desk.lease(header.job, 1))
    sweeper = desk.sweeper()
    assert sweeper.sweep() == 0

    desk.now += GRACE_S

    assert sweeper.sweep() == 1
    assert sweeper.sweep() == 0
    assert desk.left() == 1


def test_delivery_whose_trial_nobody_holds_goes_after_the_grace_and_its_trial_is_not_lost(desk: Desk) -> None:
    header, plan = desk.open(tries=1)
    desk.take(1)
    sweeper = desk.sweeper()
    sweeper.sweep()
    desk.now += GRACE_S

    assert sweeper.sweep() == 1

    assert desk.left() == 0
    assert list(desk.ledger.overdue(header.job, unclaimed_s=0)) == [0]
    desk.dispatcher.publish(header, plan, [0])
    assert desk.client.llen("null") == 1


def test_trial_between_two_leases_is_not_idle(desk: Desk) -> None:
    """A worker that stops gives its trial back and then its message: in between nobody holds the trial."""
    header, plan = desk.open(tries=1)
    desk.take(1)
    sweeper = desk.sweeper()
    for _ in range(4):
        sweeper.sweep()
        desk.now += GRACE_S - 1
        fence = desk.lease(header.job, 0)
        assert sweeper.sweep() == 0
        desk.now += 2
        desk.ledger.give_back(header.job, 0, fence=fence, reason=Return.DRAIN, delay_s=0)
        desk.dispatcher.release(header, plan)

    assert desk.left() == 1


def test_sweeper_that_did_not_look_for_long_begins_anew(desk: Desk) -> None:
    desk.open(tries=1)
    desk.take(1)
    sweeper = desk.sweeper()
    sweeper.sweep()
    desk.now += GRACE_S * 100

    assert sweeper.sweep() == 0
    desk.now += GRACE_S
    assert sweeper.sweep() == 1


def test_deliveries_of_closed_and_forgotten_jobs_go_at_once(desk: Desk) -> None:
    closed, _ = desk.open(tries=1)
    forgotten, _ = desk.open(tries=2)
    desk.open(tries=1)
    desk.take(4)
    desk.finish(closed.job, 0, fence=desk.lease(closed.job, 0))
    desk.ledger.close_job(closed.job)
    desk.ledger.forget_job(forgotten.job)

    assert desk.sweeper().sweep() == 3

    assert desk.left() == 1


def test_summary_of_a_closed_job_goes_at_once_and_that_of_an_open_one_after_the_grace(desk: Desk) -> None:
    header, _ = desk.open(tries=1)
    desk.dispatcher.gather(header)
    desk.take(1, queue=CONTROL_QUEUE)
    sweeper = desk.sweeper()
    assert sweeper.sweep() == 0
    desk.now += GRACE_S
    assert sweeper.sweep() == 1
    desk.dispatcher.gather(header)
    desk.take(1, queue=CONTROL_QUEUE)
    assert sweeper.sweep() == 0

    desk.ledger.close_job(header.job)

    assert sweeper.sweep() == 1
    assert desk.left() == 0


@pytest.mark.parametrize("answer", ["ack", "reject", "requeue"])
def test_worker_that_answers_after_the_sweep_meets_no_error_and_brings_nothing_back(
    desk: Desk, answer: str
) -> None:
    header, _ = desk.open(tries=1)
    (message,) = desk.take(1)
    desk.ledger.forget_job(header.job)
    assert desk.sweeper().sweep() == 1

    getattr(message, answer)()

    assert desk.left() == 0
    assert desk.client.llen("null") == 0


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        '["text", "", "q"]',
        '[{"headers": {"task": "trial"}}, "", "q"]',
        '[{"headers": {"task": "trial"}, "body": "!"}, "", "q"]',
        '[{"headers": {"task": "trial"}, "body": "W1tdXQ=="}, "", "q"]',  # [[]]
        '[{"headers": {"task": "trial"}, "body": "W1sxLDJdXQ=="}, "", "q"]',  # [[1,2]]
        '[{"headers": {"task": "summary"}, "body": "W1sxLDJdXQ=="}, "", "q"]',
        '[{"headers": {"task": "other"}, "body": "W1siaiIsMF1d"}, "", "q"]',  # [["j",0]]
    ],
)
def test_what_is_not_of_the_product_is_left_alone(desk: Desk, text: str) -> None:
    desk.client.hset("unacked", "a-tag", text)
    desk.client.zadd("unacked_index", {"a-tag": 1.0})
    sweeper = desk.sweeper()
    sweeper.sweep()
    desk.now += GRACE_S

    assert sweeper.sweep() == 0
    assert desk.client.hget("unacked", "a-tag") == text


def test_more_deliveries_than_fit_into_one_step_are_swept(desk: Desk) -> None:
    header, _ = desk.open(tries=1)
    desk.take(1)
    ((tag, text),) = desk.client.hgetall("unacked").items()
    with desk.client.pipeline() as pipe:
        for number in range(1200):
            pipe.hset("unacked", f"{tag}-{number}", text)
            pipe.zadd("unacked_index", {f"{tag}-{number}": 1.0})
        pipe.execute()
    desk.ledger.forget_job(header.job)

    assert desk.sweeper().sweep() == 1201

    assert desk.left() == 0


def test_two_sweepers_at_once_remove_each_delivery_once(desk: Desk) -> None:
    header, _ = desk.open(tries=12)
    desk.take(12)
    desk.ledger.forget_job(header.job)
    counts: list[int] = []
    barrier = threading.Barrier(4)

    def sweep() -> None:
        sweeper = desk.sweeper()
        barrier.wait(timeout=10)
        counts.append(sweeper.sweep())

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert (len(counts), sum(counts)) == (4, 12)
    assert desk.left() == 0


def test_broker_that_is_not_redis_has_nothing_to_sweep(desk: Desk) -> None:
    header, _ = desk.open(tries=1)
    desk.take(1)
    desk.ledger.forget_job(header.job)

    assert Leftovers(None, desk.ledger).sweep() == 0
    assert desk.left() == 1


def test_broker_that_does_not_answer_is_a_clear_error(desk: Desk) -> None:
    nowhere = RedisConnection.at("redis://127.0.0.1:1/0")

    with pytest.raises(BrokerError, match="does not answer"):
        Leftovers(nowhere, desk.ledger).sweep()
