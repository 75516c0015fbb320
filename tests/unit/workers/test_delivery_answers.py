"""What a wake-up leads to: a receipt that counts once, a trial given back, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError, StoreFullError
from benchflow_client.ledger.base import CommitStatus
from benchflow_client.schema.trial import Receipt, TrialResult
from benchflow_client.store.documents import read_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key
from benchflow_workers.delivery import Answer
from benchflow_workers.lease import Lease, LeaseKeeper
from benchflow_workers.testing import completed
from tests.stations import FlakyLedger, Station
from tests.waiting import until

GONE = SandboxError("sandbox.lost", "The sandbox is gone.")


def claim(here: Station, index: int = 0, *, ttl_s: float = 30.0) -> int:
    return here.memory.claim(here.job, index, owner="box/9", ttl_s=ttl_s, max_attempts=3).fence


def result(here: Station, receipt: Receipt) -> TrialResult:
    return read_document(here.world.store, result_key(here.job, receipt.folder), TrialResult)


def test_granted_trial_is_run_stored_counted_and_followed_by_the_next(make: Any) -> None:
    here = make(concurrency=1, tries=3)
    assert here.dispatcher.release(here.header, here.world.plan) == 1

    receipt = here.take()

    assert (receipt.trial_index, receipt.outcome, receipt.reward, receipt.attempts) == (0, "passed", 1.0, 1)
    assert list(here.memory.receipts(here.job)) == [receipt]
    assert result(here, receipt).rewards == {"reward": 1.0}
    assert [headers["id"] for headers in here.messages()] == [
        f"{here.job}.fix-build.solver.1",
        f"{here.job}.fix-build.solver.2",
    ]
    assert list(here.deliveries.scratch.iterdir()) == []
    assert here.keeper.held == 0


def test_finished_trial_is_not_run_again_and_returns_the_receipt_that_counts(here: Station) -> None:
    first = here.take()
    ran = len(here.world.sandboxes.opened)

    assert here.take() == first
    assert len(here.world.sandboxes.opened) == ran


def test_trial_somebody_else_runs_is_left_to_them(here: Station) -> None:
    claim(here)

    assert here.take() is Answer.IGNORED
    assert here.world.sandboxes.opened == []


def test_unknown_job_is_ignored(here: Station) -> None:
    here.memory.forget_job(here.job)

    assert here.take() is Answer.IGNORED


@pytest.mark.parametrize("index", [-1, 10_000])
def test_forged_wake_up_for_a_trial_outside_the_plan_takes_no_lease(here: Station, index: int) -> None:
    assert here.deliveries.take(here.job, index, lambda phase: None) is Answer.IGNORED

    assert list(here.memory.running(here.job)) == []


def test_job_that_was_forgotten_after_it_was_read_is_ignored(here: Station) -> None:
    here.jobs.get(here.job)
    here.memory.forget_job(here.job)

    assert here.take() is Answer.IGNORED


@pytest.mark.parametrize("method", ["header", "claim"])
def test_ledger_that_is_down_at_the_beginning_leaves_the_trial_for_later(here: Station, method: str) -> None:
    here.ledger.cut_off.add(method)
    assert here.take() is Answer.IGNORED

    here.ledger.cut_off.clear()

    assert here.take().outcome == "passed"


def test_plan_that_cannot_be_read_leaves_the_trial_for_later(here: Station) -> None:
    here.world.store.delete_tree(f"{here.job}/")

    assert here.take() is Answer.IGNORED
    assert here.memory.progress(here.job).running == 0


def test_used_up_attempts_are_an_errored_trial_and_the_job_goes_on(make: Any) -> None:
    here = make(concurrency=1, max_attempts=2)
    here.dispatcher.release(here.header, here.world.plan)
    for _ in range(2):
        claim(here, ttl_s=0.0)
    here.messages()

    receipt = here.take()

    assert (receipt.outcome, receipt.code, receipt.reward, receipt.attempts) == (
        "errored",
        "worker.lost",
        None,
        2,
    )
    assert result(here, receipt).error == "The worker died in the last of 2 attempts."
    assert here.world.sandboxes.opened == []
    assert [headers["id"] for headers in here.messages()] == [f"{here.job}.fix-build.solver.2"]


class TimedLedger(FlakyLedger):
    """Notes when a claim came in."""

    claimed_at = 0.0

    def claim(self, *arguments: Any, **named: Any) -> Any:
        self.claimed_at = time.monotonic()
        return self.inner.claim(*arguments, **named)


class TimedKeeper(LeaseKeeper):
    """Notes from when each lease counts."""

    counted_from = float("inf")

    @contextmanager
    def hold(self, *arguments: Any, **named: Any) -> Generator[Lease, None, None]:
        with super().hold(*arguments, **named) as lease:
            self.counted_from = lease.renewed_at
            yield lease


def test_lease_of_a_trial_counts_from_before_its_claim_came_to_the_ledger(here: Station) -> None:
    ledger = TimedLedger(here.memory)
    keeper = TimedKeeper(here.memory, ttl_s=30.0)
    try:
        timed = replace(here.deliveries, ledger=ledger, keeper=keeper)  # type: ignore[arg-type]
        timed.take(here.job, 0, lambda phase: None)
    finally:
        keeper.close()

    assert 0.0 < keeper.counted_from <= ledger.claimed_at


def test_trial_of_a_cancelled_job_is_not_run_but_counted(here: Station) -> None:
    here.memory.cancel(here.job, by="ana", reason="")

    receipts = [here.take(index) for index in (0, 1)]

    assert [(receipt.outcome, receipt.reward, receipt.folder) for receipt in receipts] == [
        ("cancelled", None, "")
    ] * 2
    assert here.world.sandboxes.opened == []
    assert [headers["task"] for headers in here.messages("control")] == ["summary"]


def test_trial_that_runs_when_its_job_is_cancelled_ends_and_is_counted(make: Any) -> None:
    here, begun = make(ttl_s=0.4), threading.Event()
    here.world.sandboxes.on("take-turn", takes_s=50, then=begun.set)
    delivery = here.taking()
    assert begun.wait(10)

    here.memory.cancel(here.job, by="ana", reason="")
    receipt = delivery.answer()

    assert receipt.outcome == "cancelled"
    assert receipt.folder == here.world.plan.trial(0).folder(1)
    assert here.world.sandboxes.opened[0].is_closed
    assert here.memory.progress(here.job).outcomes["cancelled"] == 1


def test_failure_of_the_infrastructure_is_tried_again_later(make: Any) -> None:
    here = make(concurrency=1, tries=3)
    here.dispatcher.release(here.header, here.world.plan)
    here.world.sandboxes.on("take-turn", raises=GONE)
    here.messages()

    answer = here.take()

    progress = here.memory.progress(here.job)
    assert answer is Answer.IGNORED
    assert (progress.finished, progress.running, progress.waiting) == (0, 0, 3)
    assert [headers["id"] for headers in here.messages()] == [f"{here.job}.fix-build.solver.2"]
    kept = read_document(
        here.world.store, result_key(here.job, here.world.plan.trial(0).folder(1)), TrialResult
    )
    assert kept.failures[0].code == "sandbox.lost"


def test_trial_that_succeeds_in_its_second_attempt_counts_two(here: Station) -> None:
    here.world.sandboxes.on("take-turn", raises=GONE)
    here.take()
    here.world.sandboxes.on("take-turn", completed(0))

    receipt = here.take_again()

    assert (receipt.outcome, receipt.attempts) == ("passed", 2)
    assert receipt.folder == here.world.plan.trial(0).folder(2)
    assert here.memory.progress(here.job).retried == 1


def test_last_attempt_is_not_tried_again(make: Any) -> None:
    here = make(max_attempts=1)
    here.world.sandboxes.on("take-turn", raises=GONE)

    receipt = here.take()

    assert (receipt.outcome, receipt.code) == ("errored", "sandbox.lost")


def test_failure_of_the_task_or_the_agent_is_not_tried_again(here: Station) -> None:
    here.world.sandboxes.on("run-tests", completed(1))

    receipt = here.take()

    assert (receipt.outcome, receipt.code) == ("verifier_errored", "verifier.no_reward")


def test_sandbox_lost_after_a_timeout_is_tried_again(make: Any) -> None:
    here = make(toml="[agent]\ntimeout_sec = 0.02\n")
    here.world.sandboxes.on("take-turn", takes_s=60)
    here.world.sandboxes.on("run-tests", raises=GONE)

    assert here.take() is Answer.IGNORED
    assert here.memory.progress(here.job).finished == 0


def test_verdict_beats_every_failure_and_is_never_tried_again(make: Any) -> None:
    here = make(toml="[agent]\ntimeout_sec = 0.02\n")
    here.world.sandboxes.on("take-turn", takes_s=60)
    here.world.scores(0.0)

    receipt = here.take()

    assert (receipt.outcome, receipt.reward, receipt.code) == ("failed", 0.0, "agent.timeout")


def test_ledger_that_is_down_when_a_trial_should_be_tried_again_counts_it_as_it_is(here: Station) -> None:
    here.world.sandboxes.on("take-turn", raises=GONE)
    here.ledger.cut_off.add("give_back")

    receipt = here.take()

    assert (receipt.outcome, receipt.code) == ("errored", "sandbox.lost")


def test_draining_worker_gives_its_trial_back_at_once(here: Station) -> None:
    begun = threading.Event()
    here.dispatcher.release(here.header, here.world.plan)
    here.world.sandboxes.on("take-turn", takes_s=50, then=begun.set)
    delivery = here.taking()
    assert begun.wait(10)

    here.keeper.drain()

    assert delivery.answer(within_s=10) is Answer.REQUEUED
    progress = here.memory.progress(here.job)
    assert (progress.running, progress.released, progress.retried) == (0, 2, 0)
    assert here.world.sandboxes.opened[0].is_closed
    here.world.sandboxes.on("take-turn", completed(0))
    again = here.memory.claim(here.job, 0, owner="box/2", ttl_s=30, max_attempts=3)
    assert (again.attempt, again.fence) == (1, 2)


def test_draining_worker_runs_nothing_it_is_still_handed(here: Station) -> None:
    here.keeper.drain()

    assert here.take() is Answer.REQUEUED
    assert here.world.sandboxes.commands == []


def test_draining_worker_without_a_ledger_leaves_the_trial_to_its_lease(here: Station) -> None:
    here.keeper.drain()
    here.ledger.cut_off.add("give_back")

    assert here.take() is Answer.IGNORED


def test_trial_that_ends_while_the_worker_drains_is_counted(here: Station) -> None:
    here.world.sandboxes.close_takes_s = 0.1
    delivery = here.taking()
    until(lambda: "close" in here.world.sandboxes.events)

    here.keeper.drain()

    assert delivery.answer().outcome == "passed"


def test_lost_lease_ends_the_trial_and_writes_no_receipt(make: Any) -> None:
    here, begun = make(ttl_s=0.4), threading.Event()
    here.world.sandboxes.on("take-turn", takes_s=50, then=begun.set)
    delivery = here.taking()
    assert begun.wait(10)

    here.ledger.cut_off.add("renew")

    assert delivery.answer() is Answer.IGNORED
    assert here.world.sandboxes.opened[0].is_closed
    assert list(here.memory.receipts(here.job)) == []


def test_lease_lost_as_the_trial_ends_writes_no_receipt(make: Any) -> None:
    """The verdict is known, but somebody else may run the trial by now: theirs will count."""
    here = make(ttl_s=0.4)
    here.world.sandboxes.close_takes_s = 3.0
    delivery = here.taking()
    until(lambda: "close" in here.world.sandboxes.events)

    here.ledger.cut_off.add("renew")

    assert delivery.answer() is Answer.IGNORED
    assert list(here.memory.receipts(here.job)) == []
    kept = {Path(key).name for key in here.world.store.list(f"{here.job}/")}
    assert {"config.json", "test-stdout.txt"} <= kept
    assert "result.json" not in kept


def test_result_of_a_worker_that_was_overtaken_counts_for_nothing(here: Station) -> None:
    """Its lease ran out and somebody else finished the trial: theirs stands, once."""
    theirs = Receipt(0, "failed", 0.0, "", 2, 1.0, None, None, "theirs")

    def overtake() -> None:
        here.skip(60)
        fence = claim(here)
        assert here.memory.commit(here.job, theirs, fence=fence).status is CommitStatus.COMMITTED

    here.world.sandboxes.on("run-tests", files={"/logs/verifier/reward.txt": b"1"}, then=overtake)

    answer = here.take()

    assert answer == theirs
    assert list(here.memory.receipts(here.job)) == [theirs]


def test_fenced_worker_writes_nothing_and_counts_nothing_twice(here: Station) -> None:
    def overtake() -> None:
        here.skip(60)
        claim(here)

    here.world.sandboxes.on("run-tests", files={"/logs/verifier/reward.txt": b"1"}, then=overtake)

    assert here.take() is Answer.IGNORED
    progress = here.memory.progress(here.job)
    assert (progress.finished, progress.running) == (0, 1)


def test_ledger_that_is_down_at_the_end_is_waited_for(here: Station) -> None:
    here.ledger.cut_off.add("commit")
    delivery = here.taking()
    until(lambda: here.ledger.calls.count("commit") >= 2)

    here.ledger.cut_off.clear()

    assert delivery.answer().outcome == "passed"
    assert len(here.memory.receipts(here.job)) == 1


def test_ledger_that_is_down_when_the_next_is_released_costs_no_receipt(here: Station) -> None:
    here.ledger.cut_off.add("release")

    assert here.take().outcome == "passed"


class FullStore(FileStore):
    """A folder in which nothing can be written whose key ends so."""

    full_at = "result.json"

    def put(self, key: str, data: bytes) -> None:
        if key.endswith(self.full_at):
            raise StoreFullError(f"No space for {key!r}.")
        super().put(key, data)


@pytest.mark.parametrize("full_at", ["config.json", "result.json"])
def test_store_that_is_full_at_the_end_is_a_failure_that_is_tried_again(make: Any, full_at: str) -> None:
    here = make(max_attempts=2)
    store = FullStore(here.world.store.root)
    store.full_at = full_at
    here.deliveries = replace(here.deliveries, store=store)

    first, second = here.take(), here.take_again()

    assert first is Answer.IGNORED
    assert (second.outcome, second.code, second.reward) == ("errored", "store.write_failed", None)
    assert (
        not any(key.endswith("result.json") for key in store.list(f"{here.job}/")) or full_at == "config.json"
    )


def test_worker_without_room_for_scratch_files_is_a_failure_that_is_tried_again(make: Any) -> None:
    here = make(max_attempts=1)
    here.deliveries.scratch.rmdir()

    receipt = here.take()

    assert (receipt.outcome, receipt.code) == ("errored", "store.write_failed")
    assert here.world.sandboxes.opened == []


def test_secret_of_the_worker_is_in_no_document(make: Any) -> None:
    here = make(agent_spec={"env": ("CANARY",)}, max_attempts=1)
    here.world.environ["CANARY"] = "canary-7f3a9c"
    here.world.sandboxes.on("take-turn", completed(1, b"env: canary-7f3a9c"))
    here.world.sandboxes.on(
        "run-tests", completed(0, b"canary-7f3a9c"), files={"/logs/agent/canary.log": b"CANARY=canary-7f3a9c"}
    )

    here.take()

    keys = list(here.world.store.list(f"{here.job}/"))
    assert any(key.endswith("agent/canary.log") for key in keys)
    assert [key for key in keys if b"canary-7f3a9c" in here.world.store.get(key)] == []


def test_two_workers_with_the_same_wake_up_run_a_trial_once(here: Station) -> None:
    second, start = here.another("box/2"), threading.Barrier(2)
    answers: list[Any] = []

    def run(take: Any) -> None:
        start.wait(10)
        answers.append(take())

    threads = [
        threading.Thread(target=run, args=(take,))
        for take in (here.take, lambda: second.take(here.job, 0, lambda phase: None))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)

    assert len(here.world.sandboxes.opened) == 1
    assert len(here.memory.receipts(here.job)) == 1
    assert {type(answer) for answer in answers} <= {Receipt, Answer}
