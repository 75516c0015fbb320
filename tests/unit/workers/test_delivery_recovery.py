"""An attempt whose verifier failed is followed by one that judges its agent's work, and no agent runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.recovery import SOLVER_COMPLETE, SolverComplete
from benchflow_client.schema.trial import AgentUsage, TrialResult
from benchflow_client.store.documents import read_document
from benchflow_client.store.layout import attempt_prefix, result_key
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.testing import completed
from benchflow_workers.trial.recovery import kept_for
from tests.stations import Station
from tests.worlds import TurnAgent

GONE = SandboxError("sandbox.lost", "The sandbox is gone.")
RECOVERABLE = '[verifier]\nsubmission_files = ["/app/answer"]\n'


def turns(here: Station) -> int:
    """Return how often an agent ran."""
    return sum(command.argv == ("take-turn",) for command in here.world.sandboxes.commands)


class CostlyAgent(TurnAgent):
    """An agent that knows what it used."""

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        run = await super().run(sandbox, context)
        return replace(run, usage=AgentUsage(cost_usd=2.5, total_tokens=100))


@pytest.fixture
def here(make: Any) -> Station:
    """Return a station whose first attempt loses its sandbox when the tests begin."""
    made: Station = make(toml=RECOVERABLE)
    made.world.sandboxes.on("take-turn", completed(3), files={"/app/answer": b"42"})
    made.world.sandboxes.on("run-tests", raises=GONE)
    return made


def test_second_attempt_judges_what_the_first_left_and_the_agent_ran_once(here: Station) -> None:
    here.take()
    here.world.scores(0.5)

    receipt = here.take_again()

    assert (receipt.reward, receipt.attempts, turns(here)) == (0.5, 2, 1)
    assert here.world.sandboxes.opened[1].files["/app/answer"] == b"42"
    result = read_document(here.world.store, result_key(here.job, receipt.folder), TrialResult)
    assert [failure.code for failure in result.failures] == ["agent.exited"]
    assert result.agent_exit_code == 3


def test_what_the_agent_used_is_counted_once(make: Any) -> None:
    here: Station = make(toml=RECOVERABLE, agent=CostlyAgent())
    here.world.sandboxes.on("run-tests", raises=GONE)
    here.take()
    here.world.scores(1.0)

    receipt = here.take_again()

    assert (receipt.cost_usd, receipt.tokens, turns(here)) == (2.5, 100, 1)
    spent = here.memory.progress(here.job).spent
    assert (spent.cost_usd, spent.tokens) == (2.5, 100)


def test_recovery_that_fails_is_followed_by_another_and_still_no_agent(here: Station) -> None:
    here.take()
    here.take_again()
    here.world.scores(1.0)

    receipt = here.take_again()

    assert (receipt.reward, receipt.attempts, turns(here)) == (1.0, 3, 1)
    third = attempt_prefix(here.job, receipt.folder) + SOLVER_COMPLETE
    assert read_document(here.world.store, third, SolverComplete).attempt == 1


def test_job_that_is_reopened_judges_what_is_there_and_runs_no_agent(here: Station) -> None:
    here.take()
    trial, world = here.world.plan.trial(0), here.world
    task = world.parts.bundles.task(trial.task).task

    kept = kept_for(replace(world.attempt(), epoch=1), task, world.store)

    assert kept is not None
    assert (kept.folder, kept.error) == (trial.folder(1), "The sandbox is gone.")


def test_agent_that_did_not_finish_runs_again(here: Station) -> None:
    here.world.sandboxes.on("take-turn", raises=GONE)
    here.take()
    here.world.sandboxes.on("take-turn", completed(0))
    here.world.scores(1.0)

    receipt = here.take_again()

    assert (receipt.reward, turns(here)) == (1.0, 2)


def test_task_that_does_not_ask_for_it_runs_its_agent_again(make: Any) -> None:
    here = make()
    here.world.sandboxes.on("run-tests", raises=GONE)
    here.take()
    here.world.scores(1.0)

    assert here.take_again().reward == 1.0
    assert turns(here) == 2
