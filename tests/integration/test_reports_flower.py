"""What others met with Flower: it grows, its rows stick, it lets in who should stay out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchflow_client.broker import make_app
from tests.flowers import CONFIG, LOGIN, Flower, running_flower
from tests.waiting import until
from tests.worker_fleets import WorkerFleet

BENCH = [sys.executable, "-c", "import sys; from benchflow_client.cli.main import main; sys.exit(main())"]


@pytest.fixture
def flower(fleet: WorkerFleet) -> Iterator[Flower]:
    with running_flower(fleet, FLOWER_UNAUTHENTICATED_API="true") as flower:
        yield flower


def test_flower_lets_nobody_in_without_its_password(flower: Flower) -> None:
    """Not even where its own switch would open the API; only the health check answers, with one word."""
    closed = ["/", "/workers", "/tasks", "/broker", "/metrics", "/api/workers", "/api/tasks"]
    closed += ["/api/task/types", "/api/queues/length", "/tasks/datatable", "/task/x", "/worker/x"]

    assert {path: flower.ask(path)[0] for path in closed} == dict.fromkeys(closed, 401)
    assert {path: flower.ask(path, login="ana:wrong")[0] for path in closed} == dict.fromkeys(closed, 401)
    assert flower.ask("/healthcheck") == (200, b"OK")
    assert flower.ask("/metrics", login=LOGIN)[0] == 200
    assert flower.ask("/api/tasks", login=LOGIN) == (200, b"{}")


def test_flower_has_no_second_way_in_and_commands_nothing(flower: Flower) -> None:
    """No provider of logins is configured, so that no pattern of addresses can be got around."""
    for path in ("/login", "/login/", "/login?code=x&state=y"):
        assert flower.ask(path)[0] == 404
        assert flower.ask(path, login=LOGIN)[0] == 404
    for command in (
        "/api/worker/shutdown/x", "/api/worker/pool/grow/x", "/api/task/revoke/x", "/api/task/apply/trial",
        "/api/task/async-apply/trial", "/api/task/send-task/trial", "/api/task/abort/x",
        "/api/worker/queue/cancel-consumer/x",
    ):  # fmt: skip
        assert flower.ask(command, method="POST")[0] in {401, 403}, command
        assert flower.ask(command, method="POST", login=LOGIN)[0] == 403, command
    options = CONFIG.read_text()
    assert "read_only = True" in options
    assert "auth_provider" not in options


def test_flower_forgets_the_oldest_rows_and_does_not_grow(fleet: WorkerFleet) -> None:
    limit, trials = 200, 900

    with running_flower(fleet, f"--max_tasks={limit}") as flower:
        until(lambda: fleet.redis.pubsub_numpat() > 0)
        with make_app(fleet.url) as app, app.events.default_dispatcher(hostname="box") as dispatcher:
            for number in range(trials):
                for event in ("received", "started", "succeeded"):
                    dispatcher.send(f"task-{event}", uuid=f"job.{number}", name="trial")

        until(lambda: f"job.{trials - 1}" in flower.rows())

        rows = flower.rows()
    assert len(rows) == limit
    assert "job.0" not in rows
    assert "max_tasks = 20000" in CONFIG.read_text()


def test_commands_tell_the_truth_where_flower_missed_the_end(fleet: WorkerFleet) -> None:
    worker = fleet.start(slots=1, exec_s=3600)
    with fleet.client() as client, running_flower(fleet) as flower:
        handle = client.submit(fleet.spec(tries=1))
        trial = handle.results().plan.trial(0).id
        until(lambda: trial in flower.rows())
        flower.stop()

        worker.kill()
        worker.wait(timeout=30)
        fleet.start(slots=1)
        fleet.closed(handle)

        argv = [*BENCH, "jobs", "--json"]
        done = subprocess.run(argv, env=fleet.environ, capture_output=True, check=True, timeout=60)
    with running_flower(fleet) as again:
        assert trial not in again.rows()
    (row,) = json.loads(done.stdout)
    assert (row["job"], row["state"]) == (handle.name, "done")
