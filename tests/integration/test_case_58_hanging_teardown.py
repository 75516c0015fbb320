"""A sandbox that cannot be closed costs its own trial some time, and nobody a result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.broker import make_app
from benchflow_client.dispatch import Dispatcher, job_header
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.documents import read_document, write_document
from benchflow_client.store.layout import plan_key, result_key
from benchflow_workers.admission import Admitter
from benchflow_workers.delivery import Deliveries
from benchflow_workers.gather import summarize
from benchflow_workers.jobs import JobBook
from benchflow_workers.lease import LeaseKeeper
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.testing import ScriptedSandbox, ScriptedSandboxes
from benchflow_workers.trial.event_loop import run_to_end
from tests.worlds import World, make_world

CLOSE_TIMEOUT_S = 1.5


class Stuck:
    """A sandbox whose close never returns and does not care that it is cancelled."""

    def __init__(self, real: ScriptedSandbox, is_closing: threading.Event) -> None:
        self._real = real
        self._is_closing = is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def close(self) -> None:
        self._is_closing.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


class FirstIsStuck(ScriptedSandboxes):
    """Sandboxes of which the first cannot be closed."""

    is_closing: threading.Event

    async def open(self, spec: SandboxSpec) -> Any:
        sandbox = await super().open(spec)
        return Stuck(sandbox, self.is_closing) if len(self.opened) == 1 else sandbox


@dataclass(frozen=True)
class Worker:
    world: World
    ledger: RedisLedger
    jobs: JobBook
    deliveries: Deliveries
    is_closing: threading.Event

    def take(self, index: int) -> Receipt:
        answer = self.deliveries.take(self.world.plan.job, index, lambda phase: None)
        assert isinstance(answer, Receipt)
        return answer


@pytest.fixture
def worker(tmp_path: Path, redis_url: str) -> Iterator[Worker]:
    """A worker's deliveries on a real ledger, for a job of three tries."""
    world = make_world(tmp_path, tries=3)
    sandboxes = FirstIsStuck(rules=world.sandboxes.rules)
    sandboxes.is_closing = threading.Event()
    parts = replace(world.parts, provider=lambda kind: sandboxes, close_timeout_s=CLOSE_TIMEOUT_S)
    ledger = RedisLedger.at(redis_url)
    jobs, dispatcher = JobBook(ledger, world.store), Dispatcher(make_app(redis_url), ledger)
    write_document(world.store, plan_key(world.plan.job), world.plan)
    dispatcher.open(job_header(world.plan, owner="ana"), world.plan)
    keeper = LeaseKeeper(ledger, ttl_s=5)
    scratch = tmp_path / "worker"
    scratch.mkdir()
    deliveries = Deliveries(
        ledger, world.store, keeper, dispatcher, Admitter(dispatcher, jobs), jobs, parts, "box/1", scratch
    )
    yield Worker(world, ledger, jobs, deliveries, sandboxes.is_closing)
    keeper.close()


def test_teardown_that_hangs_delays_no_other_trial_and_keeps_the_result(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    job, store = worker.world.plan.job, worker.world.store
    caplog.set_level(logging.WARNING)
    with ThreadPoolExecutor(1) as slot:
        stuck = slot.submit(worker.take, 0)
        assert worker.is_closing.wait(30)

        others = [worker.take(1), worker.take(2)]
        were_others_first = not stuck.done()
        receipt = stuck.result(timeout=30)

    assert were_others_first
    assert [item.reward for item in (receipt, *others)] == [1.0, 1.0, 1.0]
    assert read_document(store, result_key(job, receipt.folder), TrialResult).outcome is Outcome.PASSED
    assert [r.action for r in caplog.records if r.action == "sandbox_left"] == ["sandbox_left"]
    assert summarize(job, None, ledger=worker.ledger, store=store, jobs=worker.jobs)
    assert worker.ledger.progress(job).outcomes["passed"] == 3


def test_blocking_call_that_never_returns_does_not_hold_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    is_over = threading.Event()

    async def trial() -> str:
        asyncio.get_running_loop().run_in_executor(None, is_over.wait)
        return await asyncio.to_thread(str, "verdict")

    try:
        assert run_to_end(trial(), threads_grace_s=0.1) == "verdict"
        assert [record.action for record in caplog.records] == ["thread_left"]
    finally:
        is_over.set()


def test_what_a_trial_left_running_is_ended_before_its_slot_is_free() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    async def trial() -> None:
        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        assert not task.done()
        raise ValueError("the trial's own")

    with pytest.raises(ValueError, match="the trial's own"):
        run_to_end(trial())

    assert ended == ["background"]
