"""Messages as they lie in a real Redis: the chord first, fixed ids, no more than the window."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from benchflow_client.broker import CONTROL_QUEUE, LIFETIME_S, SUMMARY, TRIAL, QuietRedisBackend, make_app
from benchflow_client.dispatch import Dispatcher, job_header, short_args
from benchflow_client.errors import BrokerError, JobExistsError
from benchflow_client.ledger.base import ClaimStatus, JobHeader, JobState, TrialCancel, WorkerRecord
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import Receipt

DEAD = "redis://127.0.0.1:1/0"


def make_plan(*, tasks: int = 3, tries: int = 2, concurrency: int = 2, job: str = "calm-otter-7f3a") -> Plan:
    spec = JobSpec(
        tasks="examples/tasks", agent=("oracle", "nop"), tries=tries, concurrency=concurrency, max_attempts=5
    )  # type: ignore[arg-type]
    return Plan(
        job=job,
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=spec,
        sandbox="null",
        source=SourceInfo(path="examples/tasks"),
        tasks=tuple(
            PlannedTask(name=f"task{number}", slug=f"task{number}", digest=f"{number:064x}")
            for number in range(tasks)
        ),
        agents=tuple(PlannedAgent(label=agent.name, slug=agent.name, spec=agent) for agent in spec.agent),
    )


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        found.flushdb()
        yield found
        found.flushdb()


@pytest.fixture
def ledger(redis_url: str, client: redis.Redis) -> RedisLedger:
    return RedisLedger.at(redis_url)


@pytest.fixture
def dispatcher(redis_url: str, ledger: RedisLedger) -> Iterator[Dispatcher]:
    with make_app(redis_url) as app:
        yield Dispatcher(app, ledger)


def messages(client: redis.Redis, queue: str = "null") -> list[dict[str, Any]]:
    """Return what lies in a queue, oldest first, with the body decoded."""
    found = [json.loads(text) for text in reversed(client.lrange(queue, 0, -1))]
    return [{**item, "body": json.loads(base64.b64decode(item["body"]))} for item in found]


def header_of(plan: Plan) -> JobHeader:
    return job_header(plan, owner="ana")


def finish(ledger: RedisLedger, job: str, index: int) -> None:
    claim = ledger.claim(job, index, owner="w", ttl_s=30, max_attempts=3)
    ledger.commit(job, Receipt(index, "passed", 1.0, "", 1, 0.1, None, None, ""), fence=claim.fence)


def test_the_header_says_what_the_plan_does() -> None:
    header = header_of(make_plan())

    assert (header.job, header.total, header.concurrency, header.max_attempts) == (
        "calm-otter-7f3a",
        12,
        2,
        5,
    )
    assert (header.owner, header.queue, header.body_id) == ("ana", "null", "calm-otter-7f3a.summary")
    assert header.title == "examples/tasks oracle nop"
    assert header.group_id != header_of(make_plan()).group_id


def test_the_size_of_the_chord_is_set_before_anything_is_published(
    client: redis.Redis, dispatcher: Dispatcher
) -> None:
    plan, seen = make_plan(), []
    header = header_of(plan)
    with client.monitor() as monitor:
        dispatcher.open(header, plan)
        client.echo("that is all")
        for command in monitor.listen():
            seen.append(command["command"])
            if command["command"].startswith("ECHO"):
                break

    size = next(n for n, text in enumerate(seen) if header.group_id in text and " 12" in text)
    record = next(n for n, text in enumerate(seen) if text.startswith(("EVALSHA", "EVAL ")))
    first = next(n for n, text in enumerate(seen) if text.startswith("LPUSH null "))
    assert size < record < first


def test_a_chord_outlives_a_job_that_is_paused_for_days(client: redis.Redis, dispatcher: Dispatcher) -> None:
    plan = make_plan()
    header = header_of(plan)

    dispatcher.open(header, plan)

    (key,) = [key for key in client.scan_iter() if header.group_id in key and key.endswith(".s")]
    assert client.get(key) == "12"
    assert LIFETIME_S - 60 < client.ttl(key) <= LIFETIME_S


def test_no_more_is_published_than_may_run_at_once(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan()
    header = header_of(plan)

    assert dispatcher.open(header, plan) == 2
    assert dispatcher.release(header, plan) == 0
    finish(ledger, plan.job, 0)
    assert dispatcher.release(header, plan) == 1

    assert [item["headers"]["id"] for item in messages(client)] == [
        "calm-otter-7f3a.task0.oracle.1",
        "calm-otter-7f3a.task0.nop.1",
        "calm-otter-7f3a.task1.oracle.1",
    ]
    assert dispatcher.depth("null") == 3


def test_a_large_window_is_published_whole(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(tasks=3, tries=400, concurrency=2100)
    ledger.announce(WorkerRecord("w/1", ("null",), ("null",), 2000, 0, "healthy", 0.0), ttl_s=60)

    assert dispatcher.open(header_of(plan), plan) == 2100
    assert client.llen("null") == 2100


def test_a_message_is_a_wake_up_that_a_person_can_read(client: redis.Redis, dispatcher: Dispatcher) -> None:
    plan = make_plan()
    header = header_of(plan)

    dispatcher.open(header, plan)

    first = messages(client)[0]
    headers, (args, kwargs, embed) = first["headers"], first["body"]
    assert headers["task"] == TRIAL
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("task0 oracle 1/2", "")
    assert (headers["group"], headers["group_index"]) == (header.group_id, 0)
    assert (args, kwargs) == (["calm-otter-7f3a", 0, 1], {})
    assert embed["chord"]["task"] == SUMMARY
    assert embed["chord"]["args"] == ["calm-otter-7f3a"]
    assert embed["chord"]["options"]["task_id"] == "calm-otter-7f3a.summary"
    assert embed["chord"]["options"]["queue"] == CONTROL_QUEUE
    assert len(client.lindex("null", -1)) < 4096


def test_a_message_holds_nothing_of_the_spec(client: redis.Redis, dispatcher: Dispatcher) -> None:
    plan = make_plan()
    spec = plan.spec.model_copy(update={"agent_env": ("TOKEN=top-secret",)})

    dispatcher.open(header_of(plan), plan.model_copy(update={"spec": spec}))

    assert "top-secret" not in json.dumps(messages(client))


def test_a_trial_published_again_is_the_same_message(client: redis.Redis, dispatcher: Dispatcher) -> None:
    plan = make_plan()
    header = header_of(plan)

    dispatcher.publish(header, plan, [3])
    dispatcher.publish(header, plan, [3])

    first, second = messages(client)
    for name in ("id", "group", "group_index", "root_id", "argsrepr"):
        assert first["headers"][name] == second["headers"][name], name
    assert first["body"] == second["body"]


def test_arguments_are_short_for_tables() -> None:
    plan = make_plan()

    assert short_args(plan, plan.trial(7)) == "task0 nop 2/2"


def test_the_name_of_a_job_opens_once_and_the_second_leaves_no_chord(
    client: redis.Redis, dispatcher: Dispatcher
) -> None:
    plan = make_plan()
    dispatcher.open(header_of(plan), plan)
    keys = sorted(client.keys())

    with pytest.raises(JobExistsError):
        dispatcher.open(header_of(plan), plan)

    assert sorted(client.keys()) == keys
    assert client.llen("null") == 2


def test_the_body_can_be_published_by_itself(client: redis.Redis, dispatcher: Dispatcher) -> None:
    header = header_of(make_plan())

    dispatcher.gather(header)

    (item,) = messages(client, CONTROL_QUEUE)
    assert (item["headers"]["id"], item["headers"]["task"]) == ("calm-otter-7f3a.summary", SUMMARY)
    assert item["body"][0] == [None, "calm-otter-7f3a"]
    assert item["headers"]["argsrepr"] == "calm-otter-7f3a"


def test_the_body_is_due_when_every_trial_has_a_receipt_and_the_job_is_not_closed(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(tasks=1, tries=1)
    header = header_of(plan)
    dispatcher.open(header, plan)

    finish(ledger, plan.job, 0)
    assert dispatcher.gather_if_finished(header) is False
    finish(ledger, plan.job, 1)
    assert dispatcher.gather_if_finished(header) is True
    ledger.close_job(plan.job)
    assert dispatcher.gather_if_finished(header) is False

    assert client.llen(CONTROL_QUEUE) == 1


def test_a_cancelled_job_has_a_receipt_for_every_trial_nobody_runs(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan()
    header = header_of(plan)
    dispatcher.open(header, plan)
    finish(ledger, plan.job, 0)
    held = ledger.claim(plan.job, 1, owner="w", ttl_s=30, max_attempts=3)
    ledger.cancel(plan.job, by="ana", reason="")

    assert dispatcher.end_waiting(header) == 10
    assert dispatcher.end_waiting(header) == 0

    progress = ledger.progress(plan.job)
    assert (progress.outcomes["passed"], progress.outcomes["cancelled"], progress.running) == (1, 10, 1)
    assert client.llen(CONTROL_QUEUE) == 0
    ledger.commit(plan.job, Receipt(1, "cancelled", None, "", 1, 0, None, None, ""), fence=held.fence)
    assert dispatcher.gather_if_finished(header) is True


def test_the_last_cancelled_trial_calls_for_the_summary(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(tasks=1, tries=600, concurrency=4)
    header = header_of(plan)
    dispatcher.open(header, plan)
    ledger.cancel(plan.job, by="ana", reason="")

    assert dispatcher.end_waiting(header) == 1200
    assert client.llen(CONTROL_QUEUE) == 1
    assert ledger.claim(plan.job, 0, owner="w", ttl_s=30, max_attempts=3).status is ClaimStatus.FINISHED


def test_an_unknown_queue_is_empty(dispatcher: Dispatcher) -> None:
    assert dispatcher.depth("never-used") == 0


def test_a_broker_that_is_gone_takes_nothing_and_records_nothing(
    client: redis.Redis, ledger: RedisLedger
) -> None:
    plan = make_plan()
    header = header_of(plan)
    with make_app(DEAD) as app:
        app.conf.update(
            broker_connection_timeout=0.2,
            task_publish_retry_policy={"max_retries": 0},
            result_backend_transport_options={"retry_policy": {"max_retries": 1}},
        )
        dead = Dispatcher(app, ledger)

        for call in (
            lambda: dead.open(header, plan),
            lambda: dead.publish(header, plan, [0]),
            lambda: dead.gather(header),
            lambda: dead.depth("null"),
        ):
            with pytest.raises(BrokerError, match="took no message"):
                call()

    assert client.keys() == []


def test_a_recorded_job_stands_although_its_messages_are_refused(
    client: redis.Redis, redis_url: str, dispatcher: Dispatcher, ledger: RedisLedger, caplog: Any
) -> None:
    """Its plan must stay in the store: any worker's next look publishes what nobody claimed."""
    plan = make_plan()
    header = header_of(plan)
    with make_app(redis_url) as app:
        app.conf.update(broker_write_url=DEAD, task_publish_retry_policy={"max_retries": 0})

        assert Dispatcher(app, ledger).open(header, plan) == 0

    assert ledger.progress(plan.job).state is JobState.OPEN
    assert "calm-otter-7f3a is recorded, but its trials wait" in caplog.text
    assert client.llen("null") == 0
    dispatcher.publish(header, plan, ledger.overdue(plan.job, unclaimed_s=-1))
    assert client.llen("null") == 2


@pytest.mark.parametrize("url", ["amqp://localhost", "localhost:6379", ""])
def test_a_broker_of_another_kind_is_refused_with_the_form_to_use(url: str) -> None:
    with pytest.raises(BrokerError) as caught:
        make_app(url)

    assert "redis://:PASSWORD@HOST:6379/0" in caught.value.hint


def test_a_socket_has_two_spellings() -> None:
    with make_app("unix:///run/redis.sock") as app:
        assert app.conf.broker_url == "redis+socket:///run/redis.sock"


def test_nobody_subscribes_to_the_result_of_a_single_trial(redis_url: str) -> None:
    with make_app(redis_url) as app:
        assert isinstance(app.backend, QuietRedisBackend)
        result = app.AsyncResult("x")
        assert app.backend.add_pending_result(result) is result
        assert app.backend.on_task_call(None, "x") is None
        assert app.backend.result_consumer._pubsub is None


def chord_sizes(client: redis.Redis) -> set[int]:
    return {int(client.get(key) or 0) for key in client.scan_iter() if key.endswith(".s")}


def test_a_lost_job_goes_on_with_a_chord_of_what_is_left(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(concurrency=20)
    done = [Receipt(index, "passed", 1.0, "", 1, 0.1, None, None, "") for index in (0, 3)]

    assert dispatcher.restore(header_of(plan), plan, done) == 10

    assert chord_sizes(client) == {10}
    assert {message["body"][0][1] for message in messages(client)} == set(range(12)) - {0, 3}
    assert ledger.progress(plan.job).state is JobState.OPEN


def test_trials_that_run_again_have_a_chord_of_their_own(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(tasks=1, concurrency=4)
    header = header_of(plan)
    dispatcher.open(header, plan)
    assert dispatcher.reopen(plan.job, plan, [0]) == 0
    assert chord_sizes(client) == {4}
    for index in range(3):
        finish(ledger, plan.job, index)
    ledger.close_job(plan.job)
    client.delete("null")

    assert dispatcher.reopen(plan.job, plan, [1, 2, 99]) == 2

    group_id = ledger.header(plan.job).group_id
    assert group_id != header.group_id
    assert {message["headers"]["group"] for message in messages(client)} == {group_id}
    (size,) = [client.get(key) for key in client.scan_iter() if group_id in key and key.endswith(".s")]
    assert size == "2"


def test_a_cancelled_trial_that_waited_is_published_so_that_its_chord_counts_it(
    client: redis.Redis, dispatcher: Dispatcher, ledger: RedisLedger
) -> None:
    plan = make_plan(concurrency=1)
    header = header_of(plan)
    dispatcher.open(header, plan)
    ledger.claim(plan.job, 0, owner="w", ttl_s=30, max_attempts=3)
    client.delete("null")

    answers = [dispatcher.cancel_trial(header, plan, n, by="ana", reason="stuck") for n in (0, 5)]

    assert answers == [TrialCancel.RUNNING, TrialCancel.WAITING]
    assert [message["headers"]["id"] for message in messages(client)] == [plan.trial(5).id]
    late = ledger.claim(plan.job, 5, owner="w", ttl_s=30, max_attempts=3)
    assert (late.status, late.receipt.outcome if late.receipt else "") == (ClaimStatus.FINISHED, "cancelled")
