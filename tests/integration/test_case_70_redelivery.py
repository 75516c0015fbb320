"""A broker that gives a message again while its trial runs leads to one execution and one summary."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client import settings
from benchflow_client.api import Client
from benchflow_client.broker import SUMMARY
from benchflow_client.schema.job import JobSpec
from tests.fleets import CASES, ROOT, recorded_events
from tests.waiting import until
from tests.worlds import write_task

PROGRAM = CASES / "70-redelivered" / "worker.py"
TRIAL_S = "5"
"""Five times the broker's patience with these workers."""


@dataclass(frozen=True)
class Fleet:
    client: Client
    url: str
    jobs: Path
    logs: tuple[Path, ...]

    def count_in_logs(self, text: str) -> int:
        return sum(log.read_text().count(text) for log in self.logs)


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str) -> Iterator[Fleet]:
    """Two real workers on one broker, on the same store."""
    url, store = redis_url.removesuffix("/0") + "/7", tmp_path / "jobs"
    logs = (tmp_path / "worker-1.log", tmp_path / "worker-2.log")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    variables = {
        "PYTHONPATH": str(ROOT),
        "BENCHFLOW_BROKER_URL": url,
        "BENCHFLOW_STORE_URL": str(store),
        "BENCHFLOW_STATE_DIR": str(tmp_path / "state"),
        "BENCHFLOW_NULL_EXEC_S": TRIAL_S,
        "BENCHFLOW_LEASE_TTL_S": "4",
    }
    mine = settings.load({**variables, "BENCHFLOW_USER": "ana"})
    with ExitStack() as stack, Client(settings=mine) as client:
        for log in logs:
            output = stack.enter_context(log.open("wb"))
            worker = stack.enter_context(
                subprocess.Popen([sys.executable, str(PROGRAM)], env=kept | variables, stderr=output)
            )
            stack.callback(worker.terminate)
        until(lambda: len(client.workers()) == 2)
        yield Fleet(client, url, store, logs)


def test_redelivered_trial_runs_once_and_is_counted_once(fleet: Fleet, tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "slow")

    with recorded_events(fleet.url) as events:
        handle = fleet.client.submit(JobSpec(tasks=str(task), agent=("oracle",), tries=2, sandbox="null"))
        summary = handle.wait(timeout_s=60)
        until(lambda: any(e["type"] == "task-succeeded" and "summary" in e["uuid"] for e in events))

    deliveries = Counter(event["uuid"] for event in events if event["type"] == "task-received")
    trials = [f"{handle.name}.slow.oracle.{number}" for number in (1, 2)]
    assert all(deliveries[trial] > 1 for trial in trials), deliveries
    assert [fleet.count_in_logs(f"trial {trial} started") for trial in trials] == [1, 1]
    assert len(list((fleet.jobs / handle.name).glob("*/config.json"))) == 2
    assert (summary.total, summary.unscored, summary.retries.attempts) == (2, 2, 0)
    bodies = [e for e in events if e["type"] == "task-received" and e["name"] == SUMMARY]
    assert len(bodies) == 1
    assert fleet.count_in_logs("closed:") == 1
