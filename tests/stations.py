"""A worker's core around a world: real ledger, real dispatcher on a broker in memory, no process, no Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery

from benchflow_client.dispatch import Dispatcher, job_header
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.store.documents import write_document
from benchflow_client.store.layout import plan_key
from benchflow_workers.admission import Admitter
from benchflow_workers.delivery import Deliveries
from benchflow_workers.jobs import JobBook
from benchflow_workers.lease import LeaseKeeper
from tests.worlds import World


class FlakyLedger:
    """A ledger that can be cut off, wholly or for some methods; it counts what it is asked."""

    def __init__(self, inner: MemoryLedger) -> None:
        self.inner = inner
        self.cut_off: set[str] = set()
        self.is_down = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def asked(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            if self.is_down or name in self.cut_off:
                raise BrokerError(f"The ledger does not answer {name}.")
            return method(*arguments, **named)

        return asked


@dataclass
class Clock:
    """Seconds since the epoch, as a test wants them."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Station:
    """What one worker process is made of, for one job."""

    world: World
    memory: MemoryLedger
    ledger: FlakyLedger
    keeper: LeaseKeeper
    dispatcher: Dispatcher
    jobs: JobBook
    deliveries: Deliveries
    app: Celery
    header: JobHeader
    clock: Clock

    @property
    def job(self) -> str:
        return self.header.job

    def skip(self, seconds: float) -> None:
        """Let time pass for the ledger, and for nobody else."""
        self.clock.ahead_s += seconds

    def take(self, index: int = 0) -> Any:
        """Deliver the wake-up of a trial."""
        return self.deliveries.take(self.job, index, lambda phase: None)

    def take_again(self, index: int = 0) -> Any:
        """Deliver the wake-up of a trial that was given back, once its delay is over."""
        self.skip(60)
        self.deliveries.admitter.admit(self.header.queue)
        return self.take(index)

    def taking(self, index: int = 0) -> Delivery:
        """Deliver it on a thread of its own."""
        return Delivery(lambda: self.take(index))

    def messages(self, queue: str | None = None) -> list[dict[str, Any]]:
        """Take all messages out of a queue and return their headers."""
        found = []
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            channel.queue_declare(queue or self.header.queue)
            while (message := channel.basic_get(queue or self.header.queue, no_ack=True)) is not None:
                found.append(dict(message.headers))
        return found

    def another(self, name: str) -> Deliveries:
        """Return the deliveries of a second worker on the same ledger and store."""
        return Deliveries(
            self.ledger, self.world.store, self.keeper, self.dispatcher, self.deliveries.admitter, self.jobs, self.world.parts, name,
            self.deliveries.scratch,
        )  # fmt: skip


class Delivery:
    """A wake-up that is being dealt with on another thread."""

    def __init__(self, take: Callable[[], object]) -> None:
        self._take = take
        self._answer: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._answer = self._take()

    def answer(self, *, within_s: float = 20.0) -> Any:
        """Return what it came to."""
        self._thread.join(timeout=within_s)
        assert not self._thread.is_alive(), f"no answer within {within_s} s"
        return self._answer


def memory_app() -> Celery:
    """Return a Celery app whose broker lives in this process."""
    app = Celery("tests", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_serializer="json", accept_content=["json"], task_default_queue="control")
    return app


@contextmanager
def station(world: World, *, ttl_s: float = 30.0, name: str = "box/1") -> Generator[Station, None, None]:
    """Open the world's job in a fresh ledger, release its first trials, and put a worker beside it."""
    clock = Clock()
    memory = MemoryLedger(clock)
    ledger: Any = FlakyLedger(memory)
    app, jobs = memory_app(), JobBook(ledger, world.store)
    dispatcher, keeper = Dispatcher(app, ledger), LeaseKeeper(ledger, ttl_s=ttl_s)
    scratch = world.folder / "worker-scratch"
    scratch.mkdir()
    write_document(world.store, plan_key(world.plan.job), world.plan)
    memory.open_job(job_header(world.plan, owner="ana"))
    deliveries = Deliveries(
        ledger, world.store, keeper, dispatcher, Admitter(dispatcher, jobs), jobs, world.parts, name, scratch
    )
    here = Station(
        world, memory, ledger, keeper, dispatcher, jobs, deliveries, app, memory.header(world.plan.job), clock
    )
    here.messages("control")
    try:
        yield here
    finally:
        keeper.close()
