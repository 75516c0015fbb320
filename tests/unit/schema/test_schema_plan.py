"""A plan names every trial once, without listing them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo


def make_plan(*, tasks: int = 2, agents: int = 2, tries: int = 2) -> Plan:
    names = [f"agent{number}" for number in range(agents)]
    spec = JobSpec(tasks="t", agent=names, tries=tries)  # type: ignore[arg-type]
    return Plan(
        job="calm-otter-7f3a",
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=spec,
        sandbox="null",
        source=SourceInfo(path="t"),
        tasks=tuple(
            PlannedTask(name=f"task{number}", slug=f"task{number}", digest=f"{number:064x}")
            for number in range(tasks)
        ),
        agents=tuple(
            PlannedAgent(label=item.name, slug=item.name, spec=item) for item in spec.resolved_agents()
        ),
    )


def test_every_task_is_tried_once_by_every_agent_before_any_is_tried_again() -> None:
    plan = make_plan()

    order = [
        (trial.task.name, trial.agent.label, trial.try_number) for trial in map(plan.trial, range(plan.size))
    ]

    assert order == [
        ("task0", "agent0", 1),
        ("task0", "agent1", 1),
        ("task1", "agent0", 1),
        ("task1", "agent1", 1),
        ("task0", "agent0", 2),
        ("task0", "agent1", 2),
        ("task1", "agent0", 2),
        ("task1", "agent1", 2),
    ]


@given(tasks=st.integers(1, 5), agents=st.integers(1, 4), tries=st.integers(1, 4), attempts=st.integers(1, 3))
def test_ids_and_folders_are_unique(tasks: int, agents: int, tries: int, attempts: int) -> None:
    plan = make_plan(tasks=tasks, agents=agents, tries=tries)
    trials = [plan.trial(index) for index in range(plan.size)]

    folders = {trial.folder(attempt) for trial in trials for attempt in range(1, attempts + 1)}

    assert plan.size == tasks * agents * tries
    assert [trial.index for trial in trials] == list(range(plan.size))
    assert len({trial.id for trial in trials}) == plan.size
    assert len(folders) == plan.size * attempts


@pytest.mark.parametrize("index", [-1, 8])
def test_a_trial_that_is_not_planned_does_not_exist(index: int) -> None:
    with pytest.raises(IndexError, match="of 8"):
        make_plan().trial(index)


def test_a_plan_comes_back_from_json_as_it_was() -> None:
    plan = make_plan()

    again = Plan.model_validate_json(plan.model_dump_json())

    assert again == plan
    assert again.trial(3) == plan.trial(3)
