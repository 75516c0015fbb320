"""Settings and habits that would lose, repeat or hang trials stay away."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.broker import LIFETIME_S, make_app

ROOT = Path(__file__).parents[3]
SOURCES = [path for name in ("benchflow_client", "benchflow_workers") for path in (ROOT / name).rglob("*.py")]
BROKERS = {"redis": ("redis://h:6379/0", None), "rabbitmq": ("amqp://h:5672//", "redis://h:6379/0")}
TWO_WEEKS_S = 14 * 24 * 3600


@pytest.fixture(params=sorted(BROKERS))
def conf(request: pytest.FixtureRequest) -> Iterator[Any]:
    url, ledger_url = BROKERS[request.param]
    with make_app(url, ledger_url=ledger_url) as app:
        yield app.conf


def test_lost_connection_ends_no_trial_and_no_worker(conf: Any) -> None:
    assert conf.worker_cancel_long_running_tasks_on_connection_loss is False
    assert conf.broker_connection_retry_on_startup is True
    assert conf.broker_connection_retry is True
    assert conf.broker_connection_max_retries is None
    assert conf.broker_channel_error_retry is True


def test_repeated_message_is_the_ledgers_business(conf: Any) -> None:
    """Celery's own deduplication drops a trial whose part was not counted yet: its job would hang."""
    assert conf.worker_deduplicate_successful_tasks is False
    assert conf.task_acks_late is True
    assert conf.task_reject_on_worker_lost is True


def test_parts_of_a_chord_outlive_a_pause_of_two_weeks(conf: Any) -> None:
    """Zero would mean: at once; and a chord whose keys are gone never ends."""
    assert LIFETIME_S >= TWO_WEEKS_S
    assert conf.result_expires >= TWO_WEEKS_S
    assert conf.result_chord_expires >= TWO_WEEKS_S
    assert conf.result_backend_always_retry is True


def test_only_json_is_read(conf: Any) -> None:
    assert (conf.accept_content, conf.result_accept_content) == (["json"], ["json"])
    assert (conf.task_serializer, conf.result_serializer) == ("json", "json")


def test_worker_takes_no_message_for_later(conf: Any) -> None:
    assert conf.worker_prefetch_multiplier == 1


def test_silence_is_noticed_within_a_minute() -> None:
    with make_app("redis://h:6379/0") as app:
        options = app.conf.broker_transport_options
        assert options["socket_timeout"] + 3 * options["health_check_interval"] < 60
        assert app.conf.redis_socket_timeout <= 10
        assert app.backend.connparams["socket_timeout"] <= 10
    with make_app("amqp://h//", ledger_url="redis://h:6379/0") as app:
        assert 0 < 3 * app.conf.broker_heartbeat < 60
        assert app.conf.broker_transport_options["confirm_publish"] is True
        assert app.conf.worker_enable_prefetch_count_reduction is False


def test_redis_does_not_repeat_a_long_trial() -> None:
    with make_app("redis://h:6379/0") as app:
        assert app.conf.broker_transport_options["visibility_timeout"] >= 7 * 24 * 3600


def test_no_message_has_a_delay_or_a_priority() -> None:
    """A delayed message is held by a worker and repeated by Redis; a priority means opposite things to brokers."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno} {keyword.arg}"
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and _name(call.func) in {"send_task", "apply_async", "signature", "publish"}
        for keyword in call.keywords
        if keyword.arg in {"countdown", "eta", "expires", "priority"}
    ]

    assert found == []
    assert any("send_task" in path.read_text(encoding="utf-8") for path in SOURCES)


def test_messages_are_never_revoked() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _name(call.func) in {"revoke", "revoke_by_stamped_headers"}
    ]

    assert calls == []


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_celerys_own_worker_command_is_refused(pool: str, tmp_path: Path) -> None:
    """Its pools lose or repeat trials, and it announces no worker: `bench worker` is the one way."""
    command = [sys.executable, "-m", "celery", "-A", "benchflow_workers.app:app", "worker", "--pool", pool]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    done = subprocess.run(
        command,
        env={**kept, "PYTHONPATH": str(ROOT), "BENCHFLOW_BROKER_URL": "redis://127.0.0.1:1/0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert "bench worker" in done.stderr


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
