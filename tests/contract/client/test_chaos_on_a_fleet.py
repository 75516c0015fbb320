"""`bench chaos` and what it may touch, on one real worker whose sandboxes run nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.api import Client
from benchflow_client.chaos import session
from benchflow_client.chaos.evidence import Observer, Scene
from benchflow_client.chaos.faults import (
    EarlyBody,
    LostChord,
    LostMessage,
    Pause,
    RepeatedDelivery,
    ResetConnections,
)
from benchflow_client.chaos.secret_search import EventListener, Needle, search_redis
from benchflow_client.chaos.session import ChaosOptions, Secret, judge, listening, open_scene, run_chaos
from benchflow_client.errors import UsageError
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import SandboxRecord
from benchflow_client.schema.job import JobSpec
from tests.brokers import PrivateRedis, private_redis
from tests.waiting import until

CHANCE = random.Random(0)
QUICK = ("--sandbox", "null", "--seconds", "0.9", "--every-s", "0.2", "--seed", "38", "--settle-s", "60")
CANARY = Secret("CHAOS_CANARY", "canary-1f0e9c77")
CLOSES_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def canary_of_the_workers() -> Iterator[None]:
    """The canary stands in the variables that the fleet's worker inherits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CANARY.name, CANARY.value)
        yield


@pytest.fixture
def client(configured: Any) -> Iterator[Client]:
    with Client() as client:
        yield client


@pytest.fixture
def parked(client: Client, tasks: Path) -> Iterator[Scene]:
    """A job that runs for an hour unless somebody stops it: its messages wait or are taken."""
    spec = JobSpec(tasks=str(tasks), agent=("nop",), sandbox="docker", tries=3, concurrency=6)
    scene = open_scene(client, spec)
    yield scene
    scene.handle.cancel(by="test", reason="over")


def test_a_run_is_told_written_down_and_exits_with_0(
    configured: Any, bench: Callable[..., Any], home: Path
) -> None:
    log = home / "worker.log"
    log.write_text("nothing\n")

    done = bench(
        "chaos", *QUICK, "--trials", "12", "--reset-connections", "--canary", CANARY.name, "--log", str(log),
        "--report", str(home / "report.json"), "--json",
    )  # fmt: skip

    assert done.code == 0, done.out
    report = json.loads(done.out)
    assert report == json.loads((home / "report.json").read_text())
    assert (report["seed"], report["trials"], report["outcomes"]) == (38, 12, {"unscored": 12})
    assert {found["holds"] for found in report["invariants"]} == {True}
    assert "faults for 0.9 s, seed 38" in done.err


def test_a_secret_that_leaked_into_a_log_is_a_broken_promise_and_exits_with_1(
    configured: Any, bench: Callable[..., Any], home: Path
) -> None:
    (home / "worker.log").write_text(f"key {CANARY.value}\n")

    done = bench(
        "chaos",
        *QUICK[:2],
        "--trials",
        "2",
        "--seconds",
        "0.1",
        "--canary",
        CANARY.name,
        "--log",
        "worker.log",
    )

    assert done.code == 1, done.err
    assert "broken: secrets" in done.err
    assert "file worker.log" in done.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--worker-pid", "1"), "Process 1 is no worker of this fleet"),
        (("--drain", "box/9"), "No worker 'box/9' is alive"),
        (("--canary", "UNSET_CANARY"), "UNSET_CANARY is not set here"),
        (("--trials", "0"), "--trials"),
        (("--every-s", "0"), "--every-s"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    configured: Any, bench: Callable[..., Any], flags: tuple[str, ...], text: str
) -> None:
    before = list(configured.ledger.jobs())

    done = bench("chaos", *QUICK, *flags)

    assert done.code == 2
    assert text in done.err
    assert list(configured.ledger.jobs()) == before


def test_short_secret_and_report_that_cannot_be_written_are_refused(
    client: Client, bench: Callable[..., Any], home: Path
) -> None:
    with pytest.raises(UsageError, match="too short"):
        run_chaos(client, ChaosOptions(secret=Secret("KEY", "abc")))
    done = bench(
        "chaos",
        *QUICK[:2],
        "--trials",
        "1",
        "--seconds",
        "0.1",
        "--report",
        str(home / "none" / "report.json"),
    )

    assert done.code == 3
    assert "cannot be written" in done.err


def test_job_that_does_not_end_is_reported_and_cancelled(client: Client) -> None:
    told: list[str] = []
    options = ChaosOptions(sandbox="docker", trials=2, faults_s=0.2, every_s=0.1, deadline_s=0.5)

    report = run_chaos(client, options, on_submit=told.append)

    assert [(found.name, found.holds) for found in report.invariants] == [("ends", False)]
    assert not report.is_sound
    until(lambda: client.job(told[0]).progress().state is JobState.CLOSED)
    assert client.job(told[0]).progress().cancelled_by == "chaos"


def test_messages_are_copied_and_lost_one_by_one_and_another_jobs_stay(
    client: Client, parked: Scene, tasks: Path
) -> None:
    other = open_scene(client, JobSpec(tasks=str(tasks), agent=("nop",), sandbox="docker"))
    theirs = sorted(other.mailbox.left())

    assert RepeatedDelivery(parked.mailbox).inject(CHANCE) == "12 copies added"
    assert len(parked.mailbox.left()) == 18
    lost = LostMessage(parked.mailbox).inject(CHANCE)

    assert lost in {parked.plan.trial(index).id for index in range(6)}
    assert len(parked.mailbox.left()) == 17
    assert LostChord(parked.mailbox).inject(CHANCE) == "1 keys deleted"
    assert LostChord(parked.mailbox).inject(CHANCE) == ""
    assert sorted(other.mailbox.left()) == theirs
    assert len(theirs) == 2
    other.handle.cancel(by="test", reason="over")


def test_pause_ends_by_itself_and_a_job_that_is_over_cannot_be_paused(parked: Scene) -> None:
    assert Pause(parked.handle).inject(CHANCE).startswith("for ")
    assert parked.handle.progress().state is JobState.OPEN

    parked.handle.cancel(by="test", reason="over")

    assert Pause(parked.handle).inject(CHANCE) == ""


def test_summary_that_is_asked_for_too_early_changes_nothing(parked: Scene) -> None:
    assert "asked for" in EarlyBody(parked.fleet.dispatcher, parked.header).inject(CHANCE)

    until(lambda: not any("summary" in message for message in parked.mailbox.left()))
    assert parked.handle.progress().state is JobState.OPEN


def test_connections_are_reset_and_everybody_comes_back(client: Client, parked: Scene) -> None:
    text = ResetConnections(parked.mailbox).inject(CHANCE)

    assert int(text.split()[0]) > 0
    assert client.workers()


def test_sandbox_that_is_left_on_record_is_found(client: Client, tasks: Path) -> None:
    scene = open_scene(client, JobSpec(tasks=str(tasks), agent=("nop",), sandbox="null"))
    scene.handle.wait(timeout_s=CLOSES_S)
    book = RedisSandboxBook(scene.ledger)
    book.write(SandboxRecord("bf-left", "docker", "elsewhere", "", scene.plan.job, 0, 1, "box/1", 0.0))

    found = judge(scene, Observer(scene.handle), canary=None, settle_s=0.0, waited_s=1.0)
    book.erase("bf-left")

    broken = {each.name: each.text for each in found if each.holds is False}
    assert broken == {"sandboxes": "bf-left on record"}


def test_secret_is_heard_in_events_and_found_in_the_broker(parked: Scene) -> None:
    with listening(parked, CANARY, ()) as canary:
        assert canary is not None
        with parked.broker.reachable() as client:
            client.publish("/0.celeryev/task.x", f"key {CANARY.value}")
            client.publish("/0.celeryev/task.x", "nothing")
            client.rpush("chaos-test", CANARY.value)
        until(lambda: canary.events.hear() or canary.events.found)
        places = list(search_redis(parked.broker, canary.needle, ["chaos-*", "bf:*"]))
        with parked.broker.reachable() as client:
            client.delete("chaos-test")

    assert canary.events.found == 1
    assert places == ["key chaos-test"]


def test_listener_whose_connection_is_lost_listens_again(parked: Scene) -> None:
    with EventListener(parked.broker, Needle(CANARY.value)) as events:
        parked.mailbox.reset_connections()

        def is_heard() -> bool:
            events.hear()
            with parked.broker.reachable() as client:
                client.publish("/0.celeryev/task.x", CANARY.value)
            return events.found > 0

        until(is_heard)


def test_counts_that_do_not_add_up_are_noted_while_a_job_runs(parked: Scene) -> None:
    observer = Observer(parked.handle)
    observer.look()
    assert observer.problems == []

    with parked.ledger.reachable() as client:
        client.hset(f"bf:{{{parked.plan.job}}}", "total", 2)
    observer.look()
    with parked.ledger.reachable() as client:
        client.hset(f"bf:{{{parked.plan.job}}}", "total", parked.plan.size)

    assert observer.problems
    assert observer.looks == 2


def test_faults_of_a_run_are_those_on_its_own_job_and_what_is_named(client: Client, parked: Scene) -> None:
    named = session.named_faults(client, parked, ChaosOptions(kill=(1,), drain=("box/1",), has_resets=True))

    assert {fault.name for fault in session.client_faults(parked)} == {
        "delivered three times",
        "message lost",
        "chord lost",
        "summary too early",
        "paused",
    }
    assert {flag: fault.name for flag, fault in named.items()} == {
        "--worker-pid 1": "worker killed",
        "--drain box/1": "worker drained",
        "--reset-connections": "connections reset",
    }
    assert session.named_faults(client, parked, ChaosOptions()) == {}


def test_fault_that_was_named_and_did_not_come_is_not_proven_and_exits_with_1(
    configured: Any, bench: Callable[..., Any]
) -> None:
    done = bench("chaos", *QUICK[:2], "--trials", "2", "--seconds", "0.000001", "--reset-connections")

    assert done.code == 1, done.err
    assert "not proven: --reset-connections did not come" in done.err
    assert "nothing was lost" not in done.err


def test_job_under_fire_that_named_a_fault_meets_it_first(client: Client) -> None:
    options = ChaosOptions(
        sandbox="docker", trials=2, faults_s=30.0, every_s=0.2, deadline_s=1.0, has_resets=True
    )

    report = run_chaos(client, options)

    assert report.injections[0].fault == "connections reset"
    assert report.missed == ()
    assert report.planned[0] == "connections reset"
    assert len(report.planned) == 6


def test_listener_of_a_broker_that_is_gone_hears_nothing_and_waits(tmp_path: Path) -> None:
    with (
        private_redis(tmp_path / "redis") as server,
        EventListener(RedisConnection.at(server.url), Needle(CANARY.value)) as events,
    ):
        server.kill()
        events.hear()
        events.hear()
        server.start()
        until(lambda: _say(server) and (events.hear() or events.found))


def _say(server: PrivateRedis) -> bool:
    server.client.publish("/0.celeryev/task.x", CANARY.value)
    return True
