"""The broker of docker-compose.yml, started by its own script: each role can do its work and no more."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from benchflow_client.broker import make_app
from benchflow_client.ledger.admission import Limit, Room
from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.rates import ModelCall, Use
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_rates import RedisRates
from tests.flowers import ask_flower
from tests.ledgers import release
from tests.waiting import until

ROOT = Path(__file__).parents[2]
START = ROOT / "deploy/redis/start.sh"
FLOWER_CONFIG = ROOT / "deploy/flower/flowerconfig.py"
PASSWORDS = {
    "default": "admin-secret",
    "client": "client-secret",
    "worker": "worker-secret",
    "flower": "flower-secret",
}

WORKER_PROGRAM = '''
"""A worker of the product's broker settings with one task that needs no sandbox."""
import os
from pathlib import Path

from celery.signals import worker_ready

from benchflow_client.broker import SUMMARY, TRIAL, make_app

app = make_app(os.environ["BENCHFLOW_BROKER_URL"])


@app.task(name=TRIAL)
def trial(job, index, version):
    return [index, "passed", 1.0]


@app.task(name=SUMMARY)
def summary(parts, job):
    Path(job).write_text(repr(parts))


@worker_ready.connect(weak=False)
def say_so(**_):
    Path("ready").touch()
'''


@dataclass(frozen=True)
class Broker:
    """A running broker with one user for each role."""

    port: int
    folder: Path

    def url(self, role: str) -> str:
        """Return the URL a role connects with."""
        return f"redis://{role}:{PASSWORDS[role]}@127.0.0.1:{self.port}/0"

    def client(self, role: str) -> redis.Redis:
        """Return a connection of a role."""
        return redis.Redis.from_url(self.url(role))


def free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], *, environment: dict[str, str], cwd: Path) -> Generator[Path]:
    """Run a process in the background; yields its log."""
    log = cwd / f"{Path(command[-1]).name}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=cwd, stdout=output, stderr=output
        )
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)


def server_is_there() -> bool:
    """Return whether start.sh finds a server."""
    return any(map(shutil.which, ("valkey-server", "redis-server")))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker as docker-compose.yml starts it, on loopback."""
    if not server_is_there():
        pytest.skip("neither valkey-server nor redis-server is on PATH")
    folder = tmp_path_factory.mktemp("broker")
    port = free_port()
    environment = {
        "BENCHFLOW_REDIS_DATA_DIR": str(folder),
        "BENCHFLOW_REDIS_PASSWORD": PASSWORDS["default"],
        **{
            f"BENCHFLOW_REDIS_{role.upper()}_PASSWORD": PASSWORDS[role]
            for role in ("client", "worker", "flower")
        },
    }
    command = ["sh", str(START), "--bind", "127.0.0.1", "--port", str(port)]
    with running(command, environment=environment, cwd=folder):
        found = Broker(port, folder)
        until(lambda: answers(found), what=lambda: "an answer of the broker")
        yield found


def answers(broker: Broker) -> bool:
    """Return whether the broker answers its administrator."""
    try:
        with broker.client("default") as connection:
            return bool(connection.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def worker(broker: Broker, tmp_path: Path) -> Iterator[Path]:
    """A real Celery worker that connects as the role `worker`; yields its log."""
    (tmp_path / "role_worker.py").write_text(WORKER_PROGRAM)
    command = [sys.executable, "-m", "celery", "-A", "role_worker:app", "worker", "--pool=threads", "-c2"]
    environment = {"BENCHFLOW_BROKER_URL": broker.url("worker"), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with running([*command, "-Q", "null,control"], environment=environment, cwd=tmp_path) as log:
        until((tmp_path / "ready").exists, what=lambda: "the start of the worker")
        yield log


def header(name: str) -> JobHeader:
    """Return the header of a job of two trials without a sandbox."""
    return JobHeader(
        job=name,
        total=2,
        concurrency=2,
        max_attempts=3,
        owner="ana",
        queue="null",
        group_id=f"group-{name}",
        body_id=f"{name}.summary",
        title="examples oracle",
        created_at=0.0,
    )


def submit(broker: Broker, name: str) -> None:
    """Open a job and publish its chord as the role `client`, the way a laptop does."""
    app = make_app(broker.url("client"))
    job = header(name)
    app.backend.set_chord_size(job.group_id, job.total)
    with connect(broker.url("client")) as connection:
        ledger = RedisLedger(RedisConnection(connection))
        ledger.open_job(job)
        released = list(release(ledger, name, limit=10))
        assert released == [0, 1]
        assert ledger.progress(name).waiting == 2
    body = app.signature("summary", args=(name,), queue="control", ignore_result=True)
    body.freeze(job.body_id, group_id=job.group_id)
    for index in released:
        app.send_task(
            "trial",
            args=(name, index, 1),
            queue="null",
            task_id=f"{name}.{index}",
            group_id=job.group_id,
            group_index=index,
            chord=body,
            argsrepr=f"task oracle {index}",
        )
    app.close()


def test_a_client_submits_a_job_and_a_worker_runs_its_chord(broker: Broker, worker: Path) -> None:
    submit(broker, "calm-otter-0001")

    until((worker.parent / "calm-otter-0001").exists, what=lambda: "the chord's body")
    assert (worker.parent / "calm-otter-0001").read_text() == "[[0, 'passed', 1.0], [1, 'passed', 1.0]]"
    assert b"NOPERM" not in worker.read_bytes()
    assert b"No permissions" not in worker.read_bytes()


def test_client_and_worker_keep_limits_that_flower_cannot_see(broker: Broker) -> None:
    job = replace(header("old-moss-0003"), lanes=(("model:m",),))
    with connect(broker.url("client")) as client, connect(broker.url("worker")) as worker:
        laptop, box = RedisLedger(RedisConnection(client)), RedisLedger(RedisConnection(worker))
        laptop.set_limit("model:m", Limit(live=2, starts_per_s=1.0))
        laptop.open_job(job)

        assert list(release(laptop, "old-moss-0003", limit=10)) == [0]
        assert box.admit(Room("null", 10), limit=10, only=job.job).trials == []
        assert laptop.in_flight()["model:m"] == 1
        assert box.limits() == {"model:m": Limit(live=2, starts_per_s=1.0)}
        assert client.exists("bf:limits", "bf:rates") == 2
        laptop.set_limit("model:m", Limit(requests_per_min=60, tokens_per_min=1e6))
        seen, made = RedisRates(RedisConnection(client)), RedisRates(RedisConnection(worker))
        assert made.take(ModelCall(("model:m",), "x", 100), within_s=0).wait_s == 0
        made.settle(["model:m"], 20)
        made.close("x", 30.0)
        assert seen.used() == {"model:m": Use(1, 120)}
        assert set(seen.known().closed) == {"x"}
        laptop.set_limit("model:m", None)
        laptop.cancel("old-moss-0003", by="ana", reason="seen")
        assert box.sweep("old-moss-0003", limit=10) == 2
        box.close_job("old-moss-0003")
    with broker.client("flower") as connection:
        for key in ("bf:limits", "bf:rates", "bf:closed"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                connection.hgetall(key)


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "GET", "*"),
        ("ACL", "LIST"),
        ("LRANGE", "null", "0", "-1"),
        ("RPOP", "null"),
        ("DEL", "control"),
        ("HGETALL", "unacked"),
        ("SET", "elsewhere", "1"),
        ("PUBLISH", "/0.celery.pidbox", "shutdown"),
        ("SUBSCRIBE", "/0.celeryev/task.sent"),
    ],
    ids=" ".join,
)
def test_a_client_can_neither_read_queues_nor_command_workers(
    broker: Broker, command: tuple[str, ...]
) -> None:
    with broker.client("client") as connection, pytest.raises(redis.exceptions.NoPermissionError):
        connection.execute_command(*command)


@pytest.mark.parametrize("role", ["worker", "flower"])
@pytest.mark.parametrize(
    "command", [("FLUSHALL",), ("KEYS", "*"), ("CONFIG", "GET", "*"), ("SHUTDOWN",)], ids=" ".join
)
def test_no_role_administers_the_broker(broker: Broker, role: str, command: tuple[str, ...]) -> None:
    with broker.client(role) as connection, pytest.raises(redis.exceptions.NoPermissionError):
        connection.execute_command(*command)


def test_flower_cannot_touch_the_ledger_or_the_queues(broker: Broker) -> None:
    with broker.client("flower") as connection:
        for command in (("HGETALL", "bf:job:x"), ("LPUSH", "null", "x"), ("GET", "celery-task-meta-x")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                connection.execute_command(*command)


def test_a_role_without_a_password_does_not_exist(tmp_path: Path) -> None:
    if not server_is_there():
        pytest.skip("neither valkey-server nor redis-server is on PATH")
    port = free_port()
    environment = {
        "BENCHFLOW_REDIS_DATA_DIR": str(tmp_path),
        "BENCHFLOW_REDIS_PASSWORD": PASSWORDS["default"],
        **dict.fromkeys([f"BENCHFLOW_REDIS_{role}_PASSWORD" for role in ("CLIENT", "WORKER", "FLOWER")], ""),
    }
    with running(
        ["sh", str(START), "--bind", "127.0.0.1", "--port", str(port)], environment=environment, cwd=tmp_path
    ):
        broker = Broker(port, tmp_path)
        until(lambda: answers(broker), what=lambda: "an answer of the broker")

        with broker.client("default") as connection:
            assert connection.execute_command("ACL", "USERS") == [b"default"]
            assert connection.config_get("appendonly") == {"appendonly": "yes"}


def test_the_broker_refuses_to_start_without_a_password(tmp_path: Path) -> None:
    environment = {**os.environ, "BENCHFLOW_REDIS_DATA_DIR": str(tmp_path), "BENCHFLOW_REDIS_PASSWORD": ""}

    run = subprocess.run(
        ["sh", str(START)], env=environment, capture_output=True, text=True, timeout=20, check=False
    )

    assert run.returncode != 0
    assert "BENCHFLOW_REDIS_PASSWORD" in run.stderr


@pytest.fixture
def flower_port(broker: Broker, tmp_path: Path) -> Iterator[int]:
    """Flower with the fleet's configuration, connected as the role `flower`."""
    port = free_port()
    (tmp_path / "role_flower.py").write_text(WORKER_PROGRAM)
    command = [sys.executable, "-m", "celery", "-A", "role_flower:app", "flower", f"--conf={FLOWER_CONFIG}"]
    environment = {
        "BENCHFLOW_BROKER_URL": broker.url("flower"),
        "FLOWER_BASIC_AUTH": "ana:view-secret",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }
    with running(
        [*command, "--address=127.0.0.1", f"--port={port}"], environment=environment, cwd=tmp_path
    ) as log:
        until(
            lambda: ask_flower(port, "/healthcheck")[0] == 200,
            what=lambda: "the start of Flower",
        )
        yield port
        assert "No permissions" not in log.read_text()


def test_flower_shows_trials_read_only_behind_its_password(
    broker: Broker, worker: Path, flower_port: int
) -> None:
    def rows() -> dict[str, dict[str, object]]:
        status, body = ask_flower(flower_port, "/api/tasks", login="ana:view-secret")
        return json.loads(body) if status == 200 else {}

    until(
        lambda: ask_flower(flower_port, "/api/workers", login="ana:view-secret")[1] != b"{}",
        what=lambda: "a worker row",
    )

    submit(broker, "red-finch-0002")

    until(
        lambda: rows().get("red-finch-0002.1", {}).get("state") == "SUCCESS",
        what=lambda: "the trial in Flower",
    )
    assert rows()["red-finch-0002.1"]["args"] == "task oracle 1"
    assert ask_flower(flower_port, "/api/tasks", login="ana:wrong")[0] == 401
    refused, _ = ask_flower(
        flower_port, "/api/task/revoke/red-finch-0002.1", login="ana:view-secret", method="POST"
    )
    assert refused == 403
