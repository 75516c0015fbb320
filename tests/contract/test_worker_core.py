"""A worker put together as in production, on a real Redis: what it says of itself, what its tasks answer."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from celery import states

from benchflow_client.broker import SUMMARY, TRIAL
from benchflow_client.dispatch import job_header
from benchflow_client.errors import WorkerError
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.trial import Receipt
from benchflow_client.store.documents import write_document
from benchflow_client.store.layout import plan_key, summary_key
from benchflow_workers.__main__ import main
from benchflow_workers.celery_tasks import Part, register
from benchflow_workers.context import WorkerContext, compose, context
from benchflow_workers.drain import Presence
from benchflow_workers.worker import configure_logging, make_reaper, served_queues
from tests.waiting import until
from tests.worlds import make_world

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def environ(tmp_path: Path, redis_url: str) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "BENCHFLOW_BROKER_URL": redis_url,
        "BENCHFLOW_STORE_URL": str(tmp_path / "store"),
        "BENCHFLOW_STATE_DIR": str(tmp_path / "state"),
        "BENCHFLOW_DOCKER_HOST": f"unix://{tmp_path}/no-daemon.sock",
        "BENCHFLOW_FLEET": "tests",
        "BENCHFLOW_NULL_EXEC_S": "0.6",
    }


@pytest.fixture
def here(environ: dict[str, str]) -> Iterator[WorkerContext]:
    made = compose(environ)
    yield made
    made.keeper.close()
    made.app.close()


def test_worker_is_made_of_what_its_variables_say(here: WorkerContext, tmp_path: Path) -> None:
    here.ledger.ping()

    assert here.store.url == (tmp_path / "store").as_uri()
    assert here.fleet == "tests"
    assert here.deliveries.scratch.is_dir()
    assert here.deliveries.scratch.is_relative_to(tmp_path / "state" / "scratch")
    assert here.keeper.ttl_s == 60.0


@pytest.mark.parametrize("missing", ["BENCHFLOW_BROKER_URL", "BENCHFLOW_STORE_URL"])
def test_worker_without_an_address_says_which_variable_to_set(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(WorkerError, match=missing):
        compose({name: value for name, value in environ.items() if name != missing})


def test_store_may_be_given_as_an_address(environ: dict[str, str], tmp_path: Path) -> None:
    made = compose({**environ, "BENCHFLOW_STORE_URL": (tmp_path / "other").as_uri()})
    made.keeper.close()

    assert made.store.url == (tmp_path / "other").as_uri()


def test_worker_without_a_queue_list_serves_what_works_on_its_host(here: WorkerContext) -> None:
    queues, sandboxes = served_queues((), here)

    assert "docker" not in sandboxes
    assert sandboxes[-1] == "null"
    assert queues == (*sandboxes, "control")


def test_asked_queues_are_served_and_nothing_else(here: WorkerContext) -> None:
    assert served_queues(("null",), here) == (("null",), ("null",))
    assert served_queues(("control",), here) == (("control",), ())


def test_queue_that_does_not_exist_is_refused(here: WorkerContext) -> None:
    with pytest.raises(WorkerError, match="'nowhere'") as caught:
        served_queues(("null", "nowhere"), here)

    assert "docker, local, null, docker.gpu, control" in caught.value.hint


def test_queue_whose_sandbox_does_not_work_here_is_refused_with_what_to_do(here: WorkerContext) -> None:
    with pytest.raises(WorkerError, match="cannot run 'docker' sandboxes") as caught:
        served_queues(("docker", "null"), here)

    assert caught.value.hint


def test_reaper_looks_at_the_sandboxes_of_this_worker(here: WorkerContext) -> None:
    found = make_reaper(here, ("null",)).audit()

    assert (found.live, found.orphans) == ((), ())


def test_log_level_that_does_not_exist_is_refused() -> None:
    with pytest.raises(WorkerError, match="LOUD"):
        configure_logging("LOUD")


def test_own_log_lines_have_their_level_and_libraries_stay_quiet() -> None:
    names = ("benchflow_workers", "benchflow_client", "celery.app.trace")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        configure_logging("DEBUG")

        assert logging.getLogger("benchflow_workers.lease").getEffectiveLevel() == logging.DEBUG
        assert logging.getLogger("celery.app.trace").level == logging.ERROR
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def test_worker_is_seen_from_start_to_stop(here: WorkerContext) -> None:
    presence = Presence(here, queues=("null", "control"), sandboxes=("null",), slots=3)

    presence.start()
    (record,) = [worker for worker in here.ledger.workers() if worker.name == here.name]
    assert (record.state, record.queues, record.sandboxes, record.slots, record.running) == (
        "healthy", ("null", "control"), ("null",), 3, 0,
    )  # fmt: skip
    presence.drain()
    presence.drain()
    until(lambda: {w.state for w in here.ledger.workers() if w.name == here.name} == {"draining"})
    presence.stop()

    assert here.name not in {worker.name for worker in here.ledger.workers()}
    assert not here.deliveries.scratch.exists()


def test_worker_says_again_and_again_that_it_is_there(here: WorkerContext) -> None:
    presence = Presence(here, queues=("null",), sandboxes=("null",), slots=1)
    presence.start()
    try:
        here.ledger.retire(here.name)

        until(lambda: here.name in {worker.name for worker in here.ledger.workers()}, seconds=20)
    finally:
        presence.stop()


def test_broker_that_is_away_ends_neither_the_start_nor_the_stop(
    here: WorkerContext, caplog: pytest.LogCaptureFixture
) -> None:
    alone = replace(here, ledger=RedisLedger.at(NOBODY))
    presence = Presence(alone, queues=("null",), sandboxes=("null",), slots=1)

    with caplog.at_level(logging.WARNING):
        presence.start()
        presence.stop()

    assert "worker not announced" in caplog.text
    assert "worker not retired" in caplog.text


@pytest.mark.parametrize(
    ("receipt", "shown"),
    [
        (Receipt(2, "passed", 1.0, "", 1, 184.2, 0.123, 10, "f"), "reward 1 · $0.12 · 3m04s"),
        (Receipt(2, "failed", 0.25, "", 1, 9.6, None, None, "f"), "reward 0.25 · 10s"),
        (Receipt(2, "errored", None, "sandbox.lost", 3, 59.7, None, None, "f"), "errored · 1m00s"),
    ],
)
def test_part_of_a_chord_is_small_for_redis_and_readable_for_people(receipt: Receipt, shown: str) -> None:
    part = Part(receipt)

    assert part.__json__() == [2, receipt.outcome, receipt.reward]
    assert repr(part) == shown


@pytest.fixture
def process(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> WorkerContext:
    """The context of this process, which is made once, whoever asks first."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = context()
    assert context() is found
    register(found.app)
    return found


@pytest.fixture
def job(process: WorkerContext, tmp_path: Path) -> str:
    """A job of two trials that run nothing, open in the ledger of this process."""
    world = make_world(tmp_path / "world", agent_spec={"name": "oracle"}, tries=2)
    plan = world.plan.model_copy(update={"sandbox": "null"})
    bundle = f".bundles/{plan.tasks[0].digest[:2]}/{plan.tasks[0].digest}.tar"
    process.store.put(bundle, world.store.get(bundle))
    write_document(process.store, plan_key(plan.job), plan)
    process.deliveries.scratch.mkdir(parents=True, exist_ok=True)
    process.ledger.open_job(job_header(plan, owner="ana"))
    return plan.job


def test_trial_task_returns_a_part_and_the_summary_task_closes_the_job(
    process: WorkerContext, job: str
) -> None:
    trial, summary = process.app.tasks[TRIAL], process.app.tasks[SUMMARY]

    parts = [trial.apply(args=(job, index, 1)).result.__json__() for index in (0, 1)]
    summary.apply(args=(parts, job), throw=True)

    assert parts == [[0, "unscored", None], [1, "unscored", None]]
    assert process.ledger.progress(job).state is JobState.CLOSED
    assert process.store.exists(summary_key(job))


def test_phases_that_last_are_shown_while_the_trial_runs(process: WorkerContext, job: str) -> None:
    """Flower shows them as the state of the task."""
    seen: list[tuple[str, str]] = []
    with process.app.connection_for_read() as connection:
        receiver = process.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append((event["type"], event["uuid"]))}
        )
        listener = threading.Thread(
            target=receiver.capture, kwargs={"limit": None, "timeout": 60, "wakeup": False}, daemon=True
        )
        listener.start()
        try:
            with redis.Redis.from_url(process.app.conf.broker_url) as client:
                until(lambda: client.pubsub_numpat() or client.pubsub_channels("*celeryev*"), seconds=20)
            process.app.tasks[TRIAL].apply(args=(job, 0, 1), task_id=f"{job}.0")

            until(lambda: ("task-agent", f"{job}.0") in seen, seconds=20)
        finally:
            receiver.should_stop = True
            listener.join(timeout=10)


def test_trial_that_somebody_else_runs_is_not_counted_by_this_message(
    process: WorkerContext, job: str
) -> None:
    process.ledger.claim(job, 0, owner="box/2", ttl_s=30, max_attempts=3)

    result = process.app.tasks[TRIAL].apply(args=(job, 0, 1))

    assert result.state == states.IGNORED


def test_host_can_be_asked_what_works_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchflow_workers", "check-host"])
    monkeypatch.setenv("BENCHFLOW_DOCKER_HOST", "unix:///nowhere.sock")

    assert main() == 0

    assert [finding["kind"] for finding in json.loads(capsys.readouterr().out)] == ["docker", "local", "null"]


@pytest.mark.parametrize("verb", ["audit", "clean"])
def test_sandboxes_of_the_host_are_listed_as_data(
    process: WorkerContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchflow_workers", "sandboxes", verb])

    assert main() == 0

    assert isinstance(json.loads(capsys.readouterr().out), list)


def test_error_of_the_program_is_two_lines_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchflow_workers", "worker", "--log-level", "LOUD"])

    assert main() == 3

    said = capsys.readouterr().err
    assert said == "error  Log level 'LOUD' is not known.\n       Use DEBUG, INFO, WARNING or ERROR.\n"
