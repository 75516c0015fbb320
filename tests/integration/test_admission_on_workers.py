"""Who starts when, and what stops a job, on real workers: order and counts are checked, never speed."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from benchflow_client.handle import JobHandle
from benchflow_client.ledger.admission import Limit
from benchflow_client.ledger.base import JobState, TrialCancel
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import Caps
from tests.brokers import private_redis
from tests.commands import runner
from tests.waiting import until
from tests.worker_fleets import QUEUE, WorkerFleet, worker_fleet

BUCKET = f"sandbox:{QUEUE}"
HOUR_S = 3600.0


class Span(NamedTuple):
    """When a trial ran."""

    start: datetime
    end: datetime


def spans(handle: JobHandle) -> list[Span]:
    """Return when each trial of a job ran that did, in order of start."""
    results = [trial.result for trial in handle.trials() if trial.receipt.folder]
    return sorted(Span(found.started_at, found.finished_at) for found in results if found is not None)


def most_at_once(ran: Sequence[Span]) -> int:
    """Return how many trials ran at one moment, at most."""
    return max(sum(other.start <= span.start < other.end for other in ran) for span in ran)


def by_outcome(fleet: WorkerFleet, handle: JobHandle) -> dict[str, list[Receipt]]:
    """Return the receipts of a job by how the trials ended."""
    found: dict[str, list[Receipt]] = {}
    for receipt in fleet.receipts(handle):
        found.setdefault(receipt.outcome, []).append(receipt)
    return found


def in_flight(fleet: WorkerFleet) -> int:
    return fleet.ledger.in_flight().get(BUCKET, 0)


def test_a_small_job_behind_a_big_one_ends_soon_and_the_big_one_goes_on_meanwhile(fleet: WorkerFleet) -> None:
    fleet.start(exec_s=0.15)
    with fleet.client() as client:
        big = client.submit(fleet.spec(tries=300, concurrency=300))
        until(lambda: big.progress().finished >= 4)

        small = client.submit(fleet.spec(tries=10, concurrency=10))
        fleet.closed(small)
        left = 300 - big.progress().finished
        big.cancel(by="ana", reason="seen enough")
        fleet.closed(big)

        ran, others = spans(small), spans(big)
    assert left > 150
    meanwhile = [span for span in others if ran[0].start < span.start < ran[-1].start]
    assert 1 <= len(meanwhile) < 20


def test_a_higher_priority_goes_first(fleet: WorkerFleet) -> None:
    """Only what was in flight before, 5 of 4 slots, may start before the last urgent one."""
    fleet.start(exec_s=0.1)
    with fleet.client() as client:
        usual = client.submit(fleet.spec(tries=30, concurrency=30, priority=5))
        until(lambda: usual.progress().finished >= 2)

        urgent = client.submit(fleet.spec(tries=12, concurrency=12, priority=9))
        fleet.closed(urgent)
        fleet.closed(usual)

        first, second = spans(urgent), spans(usual)
    between = [span for span in second if first[0].start < span.start < first[-1].start]
    assert len(between) <= 5
    assert any(span.start > first[-1].start for span in second)


def test_a_live_limit_holds_over_two_workers_and_can_be_changed_while_trials_run(fleet: WorkerFleet) -> None:
    workers = [fleet.start(exec_s=0.1), fleet.start(exec_s=0.1)]
    seen: list[int] = []
    with fleet.client() as client:
        client.limits().set(BUCKET, Limit(live=3))
        handle = client.submit(fleet.spec(tries=60, concurrency=60))

        def has_sampled(finished: int) -> bool:
            seen.append(in_flight(fleet))
            return handle.progress().finished >= finished

        until(lambda: has_sampled(15))
        assert max(seen) == 3
        until(lambda: f"limit {BUCKET}" in next(handle.watch()).waiting_for)

        client.limits().set(BUCKET, Limit(live=6))
        until(lambda: in_flight(fleet) > 3)
        client.limits().set(BUCKET, None)
        fleet.closed(handle)

        ran = spans(handle)
        owners = {trial.result.worker for trial in handle.trials() if trial.result is not None}
    assert most_at_once(ran[:15]) <= 3
    assert 3 < most_at_once(ran) <= 8
    assert owners == {fleet.name_of(worker) for worker in workers}


def test_starts_keep_their_pace_over_two_workers(fleet: WorkerFleet) -> None:
    """10 a second: ten at once after a pause, from then on one every tenth of a second."""
    fleet.start(), fleet.start()
    with fleet.client() as client:
        client.limits().set(BUCKET, Limit(starts_per_s=10))
        handle = client.submit(fleet.spec(tries=30, concurrency=30))
        fleet.closed(handle)

        ran, opened = spans(handle), handle.progress().header.created_at
    early = [
        number
        for number, span in enumerate(ran, start=1)
        if span.start.timestamp() < opened + (number - 10) / 10 - 0.01
    ]
    assert (len(ran), early) == (30, [])


def test_without_a_worker_few_messages_wait_and_one_that_joins_takes_all(fleet: WorkerFleet) -> None:
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=40, concurrency=40))
        assert fleet.redis.llen(QUEUE) == 16
        assert next(handle.watch()).waiting_for == f"a worker for queue {QUEUE}"

        fleet.start(slots=2)

        assert fleet.closed(handle).unscored == 40


@pytest.fixture
def commands(fleet: WorkerFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this process use the fleet."""
    for name, value in fleet.environ.items():
        if name.startswith("BENCHFLOW_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("BENCHFLOW_USER", "ana")
    monkeypatch.chdir(fleet.folder)


@pytest.mark.usefixtures("commands")
def test_a_job_with_a_cap_stops_and_goes_on_with_a_larger_one(
    fleet: WorkerFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.start(exec_s=0.2)
    bench, tasks = runner(capsys), fleet.spec().tasks
    flags = ("--sandbox", QUEUE, "--tries", 14, "--job-name", "cap", "--max-sandbox-seconds", "1.0")

    done = bench("run", tasks, "--agent", "oracle", *flags)

    assert done.code == 1
    assert " s of 1 s used · go on: bench resume cap --max-sandbox-seconds N" in " ".join(done.err.split())
    with fleet.client() as client:
        handle = client.job("cap")
        summary = fleet.closed(handle)
        before = by_outcome(fleet, handle)
        spent = sum(receipt.wall_s for receipt in before["unscored"])
        assert len(before["unscored"]) + len(before["not_started"]) == 14
        assert summary.budget is not None
        assert (summary.budget.stopped, summary.budget.stopped_by) == (True, "max_sandbox_seconds")
        assert summary.budget.caps == {"max_sandbox_seconds": 1.0}
        assert summary.budget.trials == len(before["unscored"])
        assert summary.budget.sandbox_seconds == pytest.approx(spent, abs=0.01)
        assert 1.0 <= spent < 1.0 + max(receipt.wall_s for receipt in before["unscored"])

        again = bench("resume", "cap", "--retry", "not_started")
        assert (again.code, "--max-sandbox-seconds" in again.err) == (2, True)
        again = bench("resume", "cap", "--retry", "not_started", "--max-sandbox-seconds", "60")

        assert again.code == 0
        summary = fleet.closed(handle)
        after = {receipt.trial_index: receipt for receipt in fleet.receipts(handle)}
        assert (summary.unscored, summary.not_started) == (14, 0)
        assert all(after[receipt.trial_index] == receipt for receipt in before["unscored"])
        assert summary.budget is not None
        assert (summary.budget.stopped, summary.budget.trials) == (False, 14)


def test_a_deadline_and_a_number_of_trials_stop_a_job_and_may_be_given_anew(fleet: WorkerFleet) -> None:
    fleet.start(exec_s=0.2)
    with fleet.client() as client:
        late = client.submit(fleet.spec(tries=40, concurrency=40, deadline_s=1.5, weight=3))
        few = client.submit(fleet.spec(tries=12, concurrency=12, max_trials=5))
        ended = {handle.name: fleet.closed(handle) for handle in (late, few)}
        started = {handle.name: by_outcome(fleet, handle)["unscored"] for handle in (late, few)}
        deadline = late.progress().header.created_at + 1.5
        in_time = [span for span in spans(late) if span.start.timestamp() < deadline]

        assert 0 < len(started[late.name]) < 40
        # Those that were sent already when the deadline was over may still start: 5 of 4 slots.
        assert len(started[late.name]) <= len(in_time) + 5
        assert len(started[few.name]) == 5
        stops = [ended[handle.name].budget for handle in (late, few)]
        assert [stop.stopped_by for stop in stops if stop is not None] == ["deadline_s", "max_trials"]

        client.resume(late.name, ("not_started",), caps=Caps(deadline_s=60.0))
        client.resume(few.name, ("not_started",), caps=Caps(max_trials=12))

        assert fleet.closed(late).unscored == 40
        assert fleet.closed(few).unscored == 12


def test_equal_failures_stop_a_job_and_it_goes_on_when_their_cause_is_gone(fleet: WorkerFleet) -> None:
    fleet.start(slots=2)
    script = fleet.folder / "agent.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    spec = fleet.spec(agent=[str(script)], agent_env=["THE_KEY"], tries=30, stop_after_failures=3)
    with fleet.client() as client:
        handle = client.submit(spec)
        summary = fleet.closed(handle)

        found = by_outcome(fleet, handle)
        # Two slots may have a failure each on the way when the third is committed.
        assert 3 <= len(found["errored"]) <= 4
        assert {receipt.code for receipt in found["errored"]} == {"agent.env_missing"}
        assert len(found["not_started"]) == summary.not_started == 30 - len(found["errored"])
        assert summary.budget is not None
        assert (summary.budget.stopped, summary.budget.stopped_by) == (True, "")
        assert summary.budget.reason == "3 trials in a row ended alike: agent variable not set"
        rows = fleet.client().stored_job(handle.name).results()
        assert rows.summary is not None
        assert rows.summary.not_started == summary.not_started

        stop(fleet)
        fleet.start(THE_KEY="set")
        client.resume(handle.name)

        assert fleet.closed(handle).unscored == 30


def stop(fleet: WorkerFleet) -> None:
    """End every worker as its supervisor would."""
    for process in fleet.processes:
        process.send_signal(signal.SIGTERM)
    for process in fleet.processes:
        assert process.wait(timeout=30) == 0


@pytest.mark.usefixtures("commands")
def test_one_trial_is_cancelled_while_it_waits_and_while_it_runs(
    fleet: WorkerFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others go on: the second runs once the first is gone."""
    fleet.start(slots=1, exec_s=HOUR_S)
    bench = runner(capsys)
    with fleet.client() as client:
        handle = client.submit(fleet.spec(tries=4, job_name="four"))
        ids = [handle.results().plan.trial(index).id for index in range(4)]
        until(lambda: [trial.index for trial in fleet.ledger.running("four")] == [0])

        waiting, running = bench("cancel", ids[3], "--reason", "typo"), bench("cancel", ids[0])

        assert (waiting.code, waiting.err.strip()) == (0, f"{ids[3]} is cancelled")
        assert (running.code, running.err.strip()) == (0, f"{ids[0]} is being cancelled")
        until(lambda: [trial.index for trial in fleet.ledger.running("four")] == [1])
        assert handle.progress().state is JobState.OPEN
        assert [receipt.trial_index for receipt in by_outcome(fleet, handle)["cancelled"]] == [0, 3]
        assert bench("cancel", ids[3]).err.strip() == f"{ids[3]} was over before"
        assert bench("cancel", "four.fix-build.oracle.5").code == 2

        assert handle.cancel_trial(ids[2], by="ana") is TrialCancel.WAITING
        assert handle.cancel_trial(ids[1], by="ana") is TrialCancel.RUNNING
        assert fleet.closed(handle).cancelled == 4


def test_what_was_spent_survives_a_restart_of_redis_and_its_loss(tmp_path: Path) -> None:
    with private_redis(tmp_path / "redis") as server, worker_fleet(tmp_path, server.url) as fleet:
        fleet.start(slots=2, exec_s=0.3)
        with fleet.client() as client:
            handle = client.submit(fleet.spec(tries=12, concurrency=2, max_trials=5))
            until(lambda: handle.progress().finished >= 2)

            server.kill()
            server.start()

            summary = fleet.closed(handle)
            assert (summary.unscored, summary.not_started) == (5, 7)
            before = handle.progress()
            assert before.spent.trials == 5

            stop(fleet)
            fleet.redis.flushdb()
            fleet.start()
            recovered = client.recover(handle.name)

            assert fleet.closed(recovered).not_started == 7
            spent = recovered.progress().spent
            assert spent.trials == 5
            assert spent.sandbox_s == pytest.approx(before.spent.sandbox_s, abs=0.01)
            client.resume(handle.name, ("not_started",), caps=Caps(max_trials=8))
            summary = fleet.closed(recovered)
    assert (summary.unscored, summary.not_started) == (8, 4)


def test_a_lost_worker_is_the_cause_of_a_retry_and_the_end_of_a_trial_without_another_attempt(
    fleet: WorkerFleet,
) -> None:
    doomed = fleet.start(slots=2, exec_s=HOUR_S)
    with fleet.client() as client:
        patient = client.submit(fleet.spec(tries=3, concurrency=1))
        strict = client.submit(fleet.spec(tries=3, concurrency=1, max_attempts=1))
        until(lambda: all(len(fleet.ledger.running(handle.name)) == 1 for handle in (patient, strict)))

        doomed.kill()
        doomed.wait(timeout=10)
        fleet.start()
        summary, lost = fleet.closed(patient), fleet.closed(strict)

        assert (summary.unscored, summary.retries.attempts, summary.retries.recovered) == (3, 1, 0)
        assert summary.retries.causes == {"worker.lost": 1}
        assert (lost.unscored, lost.errored, lost.retries.attempts) == (2, 1, 0)
        kept = by_outcome(fleet, strict)["unscored"]
        client.resume(strict.name, ("worker.lost",))
        assert fleet.closed(strict).unscored == 3
        after = {receipt.trial_index: receipt for receipt in fleet.receipts(strict)}
    assert [after[receipt.trial_index] for receipt in kept] == kept
