"""Jobs a fleet has forgotten and the store has not: their own name finds them, and what they spent stays spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client import Client, JobSpec
from benchflow_client.errors import JobNotFoundError, UsageError
from benchflow_client.ledger.base import JobState
from benchflow_client.spending import Caps
from tests.waiting import until

Bench = Callable[..., Any]
NULL = ("--agent", "nop", "--sandbox", "null")


def spec(tasks: Path, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"tasks": str(tasks), "agent": "nop", "sandbox": "null", **fields})


@pytest.fixture
def forgotten(bench: Bench, tasks: Path, configured: Any) -> str:
    """Return the name of a job only the store has; the fleet has one whose name begins with it."""
    bench("run", tasks, *NULL, "--job-name", "b17")
    bench("run", tasks, *NULL, "--tries", "2", "--job-name", "b17-4404")
    configured.ledger.forget_job("b17")
    return "b17"


def test_a_full_name_is_never_taken_for_the_beginning_of_another(
    bench: Bench, tasks: Path, configured: Any, forgotten: str
) -> None:
    resumed = bench("run", tasks, *NULL, "--resume", forgotten, "--dry-run")
    shown = bench("results", forgotten)
    idle = bench("cancel", forgotten)
    with Client() as client, pytest.raises(JobNotFoundError, match="'b17' is in the store") as refused:
        client.job(forgotten)
    before = list(configured.ledger.jobs())
    begun = bench("recover", "b17-")
    recovered = bench("recover", forgotten)

    assert (resumed.code, "b17: 0 finished trials kept, 2 to run" in resumed.err) == (0, True)
    assert ("bench resume b17" in idle.err, "0/2" in shown.err) == (True, True)
    assert refused.value.hint == "Take it up: bench recover b17"
    assert ("b17" in before, "b17 is on the fleet" in recovered.err) == (False, True)
    assert (begun.err[:8], "b17" in configured.ledger.jobs()) == ("b17-4404", True)


def test_losing_the_ledger_gives_a_job_no_second_budget(bench: Bench, tasks: Path, configured: Any) -> None:
    with Client() as client:
        name = client.run(spec(tasks, tries=3, max_trials=2)).plan.job
        configured.ledger.forget_job(name)

        with pytest.raises(UsageError, match="2 of 2 trials started") as refused:
            client.resume(name)
        assert name not in configured.ledger.jobs()
        handle = client.resume(name, caps=Caps(max_trials=3))
        assert handle is not None
        handle.wait(timeout_s=60)
        spent, outcomes = handle.progress().spent, handle.progress().outcomes

    assert refused.value.hint == "Give a larger --max-trials."
    assert spent.trials == 3
    assert outcomes["not_started"] > 0


def test_a_stopped_job_is_still_stopped_when_it_was_taken_up_from_the_store(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--tries", "3", "--max-trials", "2", "--job-name", "halted")
    configured.ledger.forget_job("halted")

    bench("recover", "halted")
    until(lambda: configured.ledger.progress("halted").state is JobState.CLOSED)

    row = next(line for line in bench("jobs").err.splitlines() if "halted" in line)
    assert " stopped " in row
