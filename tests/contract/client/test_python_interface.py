"""The Python interface, on a configured fleet and on the embedded one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from benchflow_client import Client, JobSpec
from benchflow_client.access import count_workers
from benchflow_client.catalog.failures import FAILURES
from benchflow_client.embedded import fleet as fleet_module
from benchflow_client.embedded.fleet import EmbeddedFleet, describe
from benchflow_client.embedded.process import has_ended
from benchflow_client.errors import (
    BrokerError,
    JobExistsError,
    JobNotFoundError,
    JobSpecError,
    UsageError,
    WorkerError,
)
from benchflow_client.handle import StoredJob, stored_jobs
from benchflow_client.results.evidence import evidence_of
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.failure import Failure
from benchflow_client.settings import load, process_environ


def spec(tasks: Path, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"tasks": str(tasks), "agent": "nop", "sandbox": "null", **fields})


def test_a_job_is_run_and_read(tasks: Path, configured: Any) -> None:
    with Client() as client:
        results = client.run(spec(tasks, tries=2))

    assert results.summary is not None
    assert (results.plan.size, results.summary.unscored) == (4, 4)


def test_addresses_may_be_arguments(tasks: Path, home: Path, fleet: Any) -> None:
    with Client(broker_url=fleet.url, store_url=str(fleet.store)) as client:
        handle = client.submit(spec(tasks))

        assert handle.wait(timeout_s=60).job_name == handle.name
        assert not client.is_embedded
        assert [worker.queues for worker in client.workers()] == [("null", "control")]
        assert handle.name in [progress.header.job for progress in client.jobs()]


def test_the_plan_is_shown_just_before_it_is_sent(tasks: Path, configured: Any) -> None:
    seen: list[tuple[str, str, bool]] = []
    with Client() as client:
        handle = client.submit(
            spec(tasks, job_name="announced"),
            on_draft=lambda draft, fleet: seen.append((
                draft.plan.job, fleet.label, draft.plan.job in configured.ledger.jobs(),
            )),
        )  # fmt: skip
        handle.wait(timeout_s=60)

    assert seen == [("announced", "1 worker, 2 slots", False)]


def test_waiting_has_an_end_of_its_own(tasks: Path, configured: Any) -> None:
    with Client() as client:
        handle = client.submit(spec(tasks, tries=200, agent="./slow.sh"))

        with pytest.raises(TimeoutError, match=f"{handle.name} still runs after 0.1 s"):
            handle.wait(timeout_s=0.1, poll_s=0.02)

        assert handle.cancel(by="ana", reason="enough") is True
        assert handle.cancel() is False
        assert handle.wait(timeout_s=60).cancelled > 300


def test_a_name_is_taken_once(tasks: Path, configured: Any) -> None:
    with Client() as client:
        client.submit(spec(tasks, job_name="once")).wait(timeout_s=60)

        with pytest.raises(JobExistsError):
            client.submit(spec(tasks, job_name="once"))


def test_auto_is_the_best_sandbox_that_a_worker_has(tasks: Path, configured: Any) -> None:
    with Client() as client:
        assert client.draft(spec(tasks, sandbox="auto")).plan.sandbox == "docker"
        assert client.draft(spec(tasks, sandbox="local")).plan.sandbox == "local"


def test_a_summary_that_another_store_holds_is_told(tasks: Path, configured: Any, tmp_path: Path) -> None:
    with Client() as client:
        client.submit(spec(tasks, job_name="split")).wait(timeout_s=60)
        (configured.store / "split/summary.json").unlink()

        with pytest.raises(JobNotFoundError, match="its store has no summary") as caught:
            client.job("split").wait()

    assert "BENCHFLOW_STORE_URL" in caught.value.hint


def test_trials_are_read_with_their_documents(tasks: Path, configured: Any, tmp_path: Path) -> None:
    with Client() as client:
        handle = client.submit(spec(tasks))
        handle.wait(timeout_s=60)

        names = [trial.result.task_name for trial in handle.trials() if trial.result]
        counts: list[tuple[int, int]] = []
        count = handle.fetch(tmp_path / "copy", on_progress=lambda *pair: counts.append(pair))

    assert names == ["one", "two"]
    assert counts[-1] == (count, count)
    assert handle.progress().finished == 2


def test_a_job_folder_that_is_not_configured_is_that_of_the_client(
    tasks: Path, home: Path, redis_url: str
) -> None:
    """Where a broker but no store is configured, results are where the jobs folder is."""
    url = redis_url.removesuffix("/0") + "/8"
    with Client(broker_url=url) as client:
        handle = client.submit(spec(tasks, jobs_dir="out", job_name="mine"))
        handle.cancel()

    with Client(broker_url=url, jobs_dir="out") as client:
        assert client.stored_job("mine").results().plan.size == 2
        client.job("mine")._fleet.ledger.forget_job("mine")


def test_an_embedded_fleet_lives_as_long_as_its_user(tasks: Path, home: Path) -> None:
    with Client(jobs_dir="jobs") as client:
        handle = client.submit(spec(tasks))
        folder = EmbeddedFleet(load().state_dir, home / "jobs", {})
        instance = folder.running()
        assert instance is not None
        summary = handle.wait(timeout_s=60)
        assert client.job(handle.name).name == handle.name
        assert client.stored_job("@last").summary() == summary
        assert describe(list(client.workers())) == count_workers(client.workers()) == "1 worker, 4 slots"
        client.close()

    assert has_ended(instance.worker_pid)
    assert has_ended(instance.server_pid)
    assert folder.running() is None
    assert folder.stop() is False


def test_results_are_read_after_the_embedded_fleet_ended(
    tasks: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client() as client:
        name = client.submit(spec(tasks)).name
        client.job(name).wait(timeout_s=60)
    monkeypatch.setenv("BENCHFLOW_STORE_URL", str(tmp_path / "of-something-else"))

    with Client() as client:
        stored = client.stored_job("@last")

        assert isinstance(stored, StoredJob)
        assert stored.name == name
        assert stored.summary().planned == 2
        assert [trial.receipt.outcome for trial in stored.trials()] == ["unscored", "unscored"]
        assert stored.fetch(tmp_path / "copy") > 4
        (home / "jobs" / name / "summary.json").unlink()
        assert stored.summary().unscored == 2
        with pytest.raises(BrokerError, match="no embedded fleet runs"):
            client.jobs()


def test_commands_read_what_a_stopped_fleet_left(bench: Any, tasks: Path, home: Path) -> None:
    name = bench("run", tasks, "--agent", "nop", "--sandbox", "null", "--job-name", "mine").err and "mine"

    (row,) = json.loads(bench("jobs", "--json").out)
    assert (row["job"], row["state"], row["finished"], row["total"]) == (name, "done", 2, 2)
    text, data = bench("watch"), bench("watch", name, "--json")
    assert (text.code, text.out, "2 without a verdict" in text.err) == (1, "", True)
    assert (data.code, json.loads(data.out)["job_name"]) == (1, name)

    (home / "jobs/mine/summary.json").unlink()
    (row,) = json.loads(bench("jobs", "--json").out)
    assert (row["state"], row["finished"], row["total"]) == ("stopped", 2, 2)
    for command in (("cancel", name), ("cancel", f"{name}.one.nop.1"), ("pause", name)):
        done = bench(*command)
        assert (done.code, f"bench resume {name}" in done.err) == (0, True)


def test_a_detached_job_goes_on_and_others_find_its_fleet(tasks: Path, home: Path) -> None:
    client = Client()
    name = client.submit(spec(tasks, tries=3)).name
    client.detach()
    fleet = EmbeddedFleet(load().state_dir, home / "jobs", process_environ())
    try:
        with Client() as other:
            assert other.job("@last").wait(timeout_s=60).job_name == name
        assert fleet.running() is not None
        first = fleet.join(slots=1)
        assert first == fleet.running()
        fleet.leave()
        fleet.leave()
    finally:
        assert fleet.stop() is True
    assert fleet.running() is None


def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    spawn = fleet_module.spawn_detached

    def noted(*args: Any, **kwargs: Any) -> int:
        pids.append(spawn(*args, **kwargs))
        return pids[-1]

    monkeypatch.setattr(fleet_module, "spawn_detached", noted)
    fleet = EmbeddedFleet(
        tmp_path / "state", tmp_path / "jobs", {**process_environ(), "BENCHFLOW_LEASE_TTL_S": "never"}
    )

    with pytest.raises(WorkerError) as caught:
        fleet.join(slots=1)

    assert caught.value.message.startswith(
        "The embedded worker did not start. BENCHFLOW_LEASE_TTL_S is not valid:"
    )
    assert fleet.log.is_file()
    assert fleet.running() is None
    assert all(has_ended(pid) for pid in pids)
    assert not (fleet.log.parent / "server").exists()


def test_a_worker_that_says_nothing_is_given_up(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "WORKER_START_TIMEOUT_S", 0.0)
    fleet = EmbeddedFleet(tmp_path / "state", tmp_path / "jobs", process_environ())

    with pytest.raises(WorkerError) as caught:
        fleet.join(slots=1)

    assert caught.value.message.startswith("The embedded worker did not start.")
    assert fleet.running() is None


def test_a_fleet_of_nobody_can_be_left_and_stopped(tmp_path: Path) -> None:
    fleet = EmbeddedFleet(tmp_path / "state", tmp_path / "jobs", {})

    fleet.leave()

    assert fleet.stop() is False
    assert not (tmp_path / "state").exists()


def test_a_command_up_is_there_until_down(bench: Any, tasks: Path, home: Path) -> None:
    up = bench("up", "--slots", "2")
    try:
        assert (up.code, "up: 1 worker, 2 slots" in up.err) == (0, True)
        run = bench("run", tasks, "--agent", "nop", "--sandbox", "null")
        assert "embedded (1 worker, 2 slots)" in run.err
        assert bench("workers").code == 0
        assert bench("jobs").code == 0
    finally:
        down = bench("down")
    assert (down.code, down.err) == (0, "down\n")
    assert bench("down").err == "nothing was running for the folder jobs\n"


def test_jobs_of_a_folder_are_listed_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "older")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
        when = time.time() - age * 60
        os.utime(tmp_path / name / "plan.json", (when, when))
    (tmp_path / "no-job").mkdir()

    assert stored_jobs(tmp_path) == ["new", "old", "older"]
    assert stored_jobs(tmp_path / "nothing") == []


def test_a_jobs_folder_below_a_file_is_refused_before_a_fleet_starts(tasks: Path, home: Path) -> None:
    (home / "file").write_text("in the way\n")

    with Client() as client, pytest.raises(JobSpecError, match="cannot be made: Not a directory"):
        client.submit(spec(tasks, jobs_dir="file/jobs"))

    assert not (load().state_dir / "embedded").exists()


def test_a_draft_without_a_fleet_starts_none(tasks: Path, home: Path) -> None:
    with Client() as client:
        assert client.draft(spec(tasks, sandbox="auto")).plan.sandbox in {"docker", "local"}
        with pytest.raises(UsageError):
            client.draft(spec(home / "nothing"))

    assert not (home / "jobs").exists()


def test_a_dry_run_guesses_the_sandbox_that_the_run_then_takes(
    bench: Any, tasks: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker may listen at its usual place: what counts is where this user's workers look for it."""
    auto = ("run", tasks, "--agent", "nop", "--job-name", "guessed")
    monkeypatch.delenv("BENCHFLOW_DOCKER_HOST")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/no.sock")

    guessed = json.loads(bench(*auto, "--dry-run", "--json").out)
    bench(*auto)

    taken = json.loads((home / "jobs/guessed/plan.json").read_text())
    assert (guessed["sandbox"], taken["sandbox"]) == ("local", "local")


def test_evidence_is_the_first_message_of_each_cause(tasks: Path, configured: Any) -> None:
    assert "sandbox.lost" in FAILURES
    with Client() as client:
        handle = client.submit(spec(tasks, tries=2))
        summary = handle.wait(timeout_s=60)
        trials = list(handle.trials())
    cause = summary.failures[0].model_copy(update={"code": "sandbox.lost"})
    other = cause.model_copy(update={"code": "agent.timeout"})

    def failing() -> list[PublishedTrial]:
        found = [PublishedTrial(trials[0].receipt, None)]
        for number, (code, detail) in enumerate((
            ("task.unreadable", ""), ("sandbox.lost", "line\nlast line\n"), ("sandbox.lost", "later"),
        )):  # fmt: skip
            failure = Failure(code=code, message=f"It died {number}.", detail=detail)
            result = trials[0].result
            assert result is not None
            found.append(
                PublishedTrial(trials[0].receipt, result.model_copy(update={"failures": (failure,)}))
            )
        return found

    one = summary.model_copy(update={"failures": (cause,)})
    two = summary.model_copy(update={"failures": (cause, other)})
    assert evidence_of(failing, one) == {"sandbox.lost": "It died 1. last line"}
    assert evidence_of(failing, two) == {"sandbox.lost": "It died 1. last line"}
    assert evidence_of(lambda: 1 / 0, summary.model_copy(update={"failures": ()})) == {}  # type: ignore[arg-type, return-value]


def test_evidence_is_one_line_of_a_table(tasks: Path, configured: Any) -> None:
    with Client() as client:
        handle = client.submit(spec(tasks))
        summary = handle.wait(timeout_s=60)
        trial = next(iter(handle.trials()))
    assert trial.result is not None
    cause = summary.failures[0].model_copy(update={"code": "sandbox.lost"})
    result = trial.result.model_copy(
        update={"failures": (Failure(code="sandbox.lost", message="long " * 80),)}
    )

    found = evidence_of(
        lambda: [PublishedTrial(trial.receipt, result)], summary.model_copy(update={"failures": (cause,)})
    )

    assert len(found["sandbox.lost"]) == 160
    assert found["sandbox.lost"].endswith("…")
