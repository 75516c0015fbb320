"""RabbitMQ as the broker, beside a Redis for the ledger: what only it does."""

from __future__ import annotations

import pytest

from benchflow_client import settings
from benchflow_client.addresses import fleet_addresses
from benchflow_client.api import Client
from benchflow_client.broker import check_rabbitmq, make_app, queue_depth
from benchflow_client.doctor import check_machine
from benchflow_client.errors import BrokerError
from tests.brokers import RabbitNode, link_to
from tests.waiting import until
from tests.worker_fleets import QUEUE, WorkerFleet

pytestmark = [pytest.mark.rabbitmq, pytest.mark.parametrize("fleet", ["rabbitmq"], indirect=True)]


def test_running_trial_is_not_repeated_after_a_lost_link(fleet: WorkerFleet) -> None:
    """RabbitMQ gives all messages of the lost connections again, at once and to any worker."""
    with link_to(fleet.broker or "") as link, fleet.client() as client:
        behind = WorkerFleet(fleet.folder, fleet.url, link.url, fleet.processes)
        behind.start(exec_s=3)
        behind.start(exec_s=3)
        handle = client.submit(fleet.spec(tries=8, concurrency=8))
        until(lambda: len(fleet.ledger.running(handle.name)) == 8, seconds=30, what=fleet.logs)

        assert link.cut() > 0
        summary = fleet.closed(handle)
        assert {receipt.attempts for receipt in fleet.receipts(handle)} == {1}
        fleet.closed(client.submit(fleet.spec(tries=1)))
        assert fleet.is_healthy()
        assert fleet.logs().count("Connection to broker lost") == 2

    assert summary.unscored == 8
    assert fleet.logs().count(" started\n") == 9


def test_trial_that_outlasts_the_patience_of_the_broker_runs_once(
    fleet: WorkerFleet, rabbit: RabbitNode
) -> None:
    """By default the patience is half an hour; here it is two seconds, and the worker was warned of it."""
    with rabbit.impatient(after_s=2), fleet.client() as client:
        fleet.start(exec_s=4, slots=2)
        handle = client.submit(fleet.spec(tries=2, concurrency=2))
        summary = fleet.closed(handle)
        fleet.closed(client.submit(fleet.spec(tries=1)))

    assert summary.unscored == 2
    assert "connection to broker lost" in fleet.logs().lower()
    assert fleet.logs().count(" started\n") == 3
    assert "consumer_timeout" in fleet.logs().splitlines()[0]


def test_depth_is_what_waits_and_counting_makes_no_queue(fleet: WorkerFleet) -> None:
    with make_app(fleet.broker or "", ledger_url=fleet.url) as app:
        assert [queue_depth(app, name) for name in ("never-used", "never-used")] == [0, 0]

        for _ in range(3):
            app.send_task("nobody", queue=QUEUE, ignore_result=True)

        assert queue_depth(app, QUEUE) == 3


def test_doctor_names_both_servers(fleet: WorkerFleet) -> None:
    found = {check.subject: check for check in check_machine(settings.load(fleet.environ), fleet.environ)}

    assert "RabbitMQ" in found["broker"].text
    assert fleet.url.rpartition("@")[2] in found["broker"].text


def test_wrong_password_is_named_without_being_shown(fleet: WorkerFleet, rabbit: RabbitNode) -> None:
    url = rabbit.url(password="wrong-word")

    with Client(broker_url=url, ledger_url=fleet.url) as client, pytest.raises(BrokerError) as caught:
        client.workers()

    assert "refused the user or the password" in caught.value.message
    assert "wrong-word" not in caught.value.message


def test_unknown_virtual_host_is_a_broker_that_does_not_answer(
    fleet: WorkerFleet, rabbit: RabbitNode
) -> None:
    at = fleet_addresses(rabbit.url("nowhere"), fleet.url)
    with make_app(at.broker, ledger_url=at.ledger) as app, pytest.raises(BrokerError, match="nowhere"):
        check_rabbitmq(app)
