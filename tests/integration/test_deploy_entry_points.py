"""The entry points of the images in deploy/, run as plain processes as docker-compose.yml starts them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.redis import RedisLedger
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]

PROGRAMS = {
    # What the installed console scripts run, for checkouts that are not installed.
    "bench": "import sys; from benchflow_client.cli.main import main; sys.exit(main())",
    "celery": "import sys; from celery.__main__ import main; sys.exit(main())",
}


def command_of(service: str) -> list[str]:
    """Return the command line that compose runs for a service, with programs of this interpreter."""
    target = SERVICES[service]["build"]["target"]
    stage = re.search(rf"^FROM \S+ AS {target}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert stage is not None
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", stage[1], re.MULTILINE)[-1])
    default = json.loads(re.findall(r"^CMD (.+)$", stage[1], re.MULTILINE)[-1])
    arguments = [
        re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", item) for item in SERVICES[service].get("command", default)
    ]
    arguments = [item.replace("/etc/benchflow/", f"{ROOT}/deploy/flower/") for item in arguments]
    return [sys.executable, "-c", PROGRAMS[entry[0]], *entry[1:], *arguments]


@contextmanager
def started(
    command: list[str], folder: Path, **variables: str
) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a command in the background; it is killed when a test left it running."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, "PYTHONPATH": str(ROOT), **variables},
            stdout=output,
            stderr=output,
        )
        try:
            yield process, log
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=10)


@pytest.fixture
def fleet(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """Variables of a fleet with an empty broker and a store of its own."""
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushall()
    return {
        "BENCHFLOW_BROKER_URL": redis_url,
        "BENCHFLOW_STORE_URL": str(tmp_path / "store"),
        "BENCHFLOW_STATE_DIR": str(tmp_path / "state"),
        "BENCHFLOW_FLEET": "entry-points",
    }


@pytest.mark.parametrize(
    ("service", "queues", "slots"),
    [("control", ("control",), 2), pytest.param("worker", ("docker",), 4, marks=pytest.mark.docker)],
)
def test_a_worker_announces_itself_and_leaves_on_sigterm(
    service: str, queues: tuple[str, ...], slots: int, fleet: dict[str, str], tmp_path: Path
) -> None:
    with (
        started(command_of(service), tmp_path, **fleet) as (process, log),
        connect(fleet["BENCHFLOW_BROKER_URL"]) as connection,
    ):
        ledger = RedisLedger(RedisConnection(connection))
        until(lambda: process.poll() is not None or len(ledger.workers()) == 1, what=log.read_text)
        assert process.poll() is None, log.read_text()
        assert [(item.queues, item.slots, item.state) for item in ledger.workers()] == [
            (queues, slots, "healthy")
        ]

        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=30)

        assert code == 0, log.read_text()
        assert list(ledger.workers()) == []
        assert "Traceback" not in log.read_text()


def test_flower_starts_on_the_fleets_app_and_wants_its_password(
    fleet: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    address = [f"--port={port}", "--address=127.0.0.1"]

    with started(
        [*command_of("flower"), *address], tmp_path, **fleet, FLOWER_BASIC_AUTH="ana:view-secret"
    ) as (process, log):
        until(lambda: process.poll() is not None or status(port, "/healthcheck") == 200, what=log.read_text)

        assert process.poll() is None, log.read_text()
        assert status(port, "/tasks") == 401
        assert status(port, "/tasks", user="ana:view-secret") == 200


def status(port: int, path: str, *, user: str = "") -> int:
    """Return the status of a page; 0 = nobody listens."""
    token = base64.b64encode(user.encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Basic {token}"} if user else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except urllib.error.URLError:
        return 0


@pytest.mark.parametrize("service", ["worker", "control"])
def test_a_worker_without_a_broker_says_so_in_one_line(service: str, tmp_path: Path) -> None:
    variables = {"BENCHFLOW_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path)}
    with started(command_of(service), tmp_path, **variables) as (process, log):
        code = process.wait(timeout=60)

    assert code == 3
    assert "BENCHFLOW_BROKER_URL" in log.read_text()
    assert "Traceback" not in log.read_text()
