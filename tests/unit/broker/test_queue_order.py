"""In which order a worker looks into its queues: what nobody else can take first."""

from __future__ import annotations

from kombu.utils.scheduling import cycle_by_name

from benchflow_client.broker import FewestServersFirst, make_app


def test_summaries_come_first_and_trials_with_gpus_before_those_any_worker_can_take() -> None:
    order = FewestServersFirst()

    order.update({"null", "docker", "local", "docker.gpu", "control"})

    assert order.consume(5) == ["control", "docker.gpu", "docker", "local", "null"]
    assert order.consume(2) == ["control", "docker.gpu"]


def test_order_stays_whichever_queue_was_served_last() -> None:
    order = FewestServersFirst()
    order.update(["docker", "docker.gpu"])

    order.rotate("docker.gpu")

    assert order.consume(2) == ["docker.gpu", "docker"]


def test_workers_on_redis_look_in_that_order() -> None:
    with make_app("redis://127.0.0.1:1/0", ledger_url="redis://127.0.0.1:1/0") as app:
        name = app.conf.broker_transport_options["queue_order_strategy"]

    assert cycle_by_name(name) is FewestServersFirst
