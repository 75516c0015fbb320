"""What others met when they sent messages: delays the broker repeats, priorities it bends."""

from __future__ import annotations

import ast

import pytest
from pydantic import ValidationError

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from tests.waiting import until
from tests.worker_fleets import ROOT, WorkerFleet

DELAYS = frozenset({"countdown", "eta", "expires", "retry_backoff"})
"""Options with which Celery keeps a message in a worker's memory, or the broker gives it again."""


def test_no_message_is_sent_with_a_delay_of_the_queue() -> None:
    """A delay longer than the broker's patience comes many times; waiting is the ledger's affair."""
    calls = {
        f"{path.relative_to(ROOT)}:{node.value.lineno}": node.arg
        for package in ("benchflow_client", "benchflow_workers")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg in DELAYS
    }

    assert calls == {}


@pytest.mark.parametrize("priority", [10, -1, 255])
def test_priority_outside_0_to_9_is_refused_and_not_bent(priority: int) -> None:
    with pytest.raises(ValidationError, match="priority"):
        JobSpec(tasks="tasks", agent=(AgentSpec(name="oracle"),), priority=priority)


def test_job_of_high_priority_goes_first_and_the_other_waits(fleet: WorkerFleet) -> None:
    fleet.start(slots=1, exec_s=0.2)
    with fleet.client() as client:
        low = client.submit(fleet.spec(tries=20, concurrency=20, priority=0))
        until(lambda: low.progress().finished > 0)
        high = client.submit(fleet.spec(tries=3, concurrency=3, priority=9))

        until(lambda: high.progress().finished == 3)

        assert low.progress().finished < 12


def test_summary_of_a_small_job_does_not_wait_for_the_trials_of_a_large_one(fleet: WorkerFleet) -> None:
    """Both are messages for the same workers, whose next free slot must go to the summary."""
    fleet.start(slots=1, exec_s=0.2)
    with fleet.client() as client:
        large = client.submit(fleet.spec(tries=60, concurrency=60))
        until(lambda: large.progress().finished > 0)

        fleet.closed(client.submit(fleet.spec(tries=1)))

        assert large.progress().finished < 30
