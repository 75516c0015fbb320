"""What is asked of broker and ledger before anything is sent, and how each answer reads."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import redis

from benchflow_client import settings
from benchflow_client.broker import check_rabbitmq, make_app
from benchflow_client.doctor import check_machine
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.connection import RedisConnection
from tests.brokers import free_port, private_redis


def other(url: str, database: int) -> str:
    return f"{url.rpartition('/')[0]}/{database}"


def test_rabbitmq_that_is_not_there_is_named_without_its_password() -> None:
    app = make_app("amqp://ana:word@127.0.0.1:1/bench", ledger_url="redis://h/0")

    with app, pytest.raises(BrokerError, match="does not answer") as caught:
        check_rabbitmq(app)

    assert "RabbitMQ at amqp://127.0.0.1:1/bench" in caught.value.message
    assert "word" not in caught.value.message
    assert "virtual host" in caught.value.hint


def test_redis_is_not_asked_as_a_rabbitmq() -> None:
    with make_app("redis://127.0.0.1:1/0") as app:
        assert check_rabbitmq(app) == ""


def test_doctor_names_two_servers_of_the_same_kind(redis_url: str, tmp_path: Path) -> None:
    environ = {
        "BENCHFLOW_BROKER_URL": other(redis_url, 3),
        "BENCHFLOW_LEDGER_URL": other(redis_url, 4),
        "BENCHFLOW_STORE_URL": str(tmp_path / "store"),
        "BENCHFLOW_STATE_DIR": str(tmp_path),
    }

    found = {check.subject: check for check in check_machine(settings.load(environ), environ)}

    assert "/3 and, for the ledger, Redis " in found["broker"].text
    assert "/4 answer" in found["broker"].text


def test_doctor_fails_on_a_rabbitmq_without_a_ledger(tmp_path: Path) -> None:
    environ = {"BENCHFLOW_BROKER_URL": "amqp://h//", "BENCHFLOW_STATE_DIR": str(tmp_path)}

    found = {check.subject: check for check in check_machine(settings.load(environ), environ)}

    assert found["broker"].status == "FAIL"
    assert "BENCHFLOW_LEDGER_URL" in found["broker"].text


def test_user_who_may_not_ask_about_the_server_can_still_use_it(redis_url: str) -> None:
    name, word = f"user-{secrets.token_hex(4)}", secrets.token_hex(8)
    with redis.Redis.from_url(redis_url) as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", f">{word}", "~*", "&*", "+@all", "-info")
        try:
            RedisConnection.at(f"redis://{name}:{word}@{redis_url.rpartition('@')[2]}").check()
        finally:
            admin.execute_command("ACL", "DELUSER", name)


def test_cluster_is_known_by_what_it_answers_too(tmp_path: Path) -> None:
    more = f"cluster-enabled yes\ncluster-port {free_port()}"
    with private_redis(tmp_path / "node", more=more) as node:
        connection = RedisConnection.at(node.url)

        with (
            pytest.raises(BrokerError, match="is a node of a Redis Cluster"),
            connection.reachable() as client,
        ):
            client.set("x", "y")
        with pytest.raises(BrokerError, match="is a node of a Redis Cluster"):
            connection.check()
