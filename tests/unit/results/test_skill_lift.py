"""What skills change is counted over the trials that both jobs can speak of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.report import Line, Table, lift_report
from benchflow_client.results.lift import AgentLift, Outcomes, skill_lift
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import Receipt


def plan(*tasks: str, agents: tuple[str, ...] = ("solver",), tries: int = 1, digest: str = "0") -> Plan:
    return Plan(
        job=f"job-{digest}",
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=JobSpec(tasks="tasks", agent=tuple(AgentSpec(name=name) for name in agents), tries=tries),
        sandbox="local",
        source=SourceInfo(path="tasks"),
        tasks=tuple(PlannedTask(name=name, slug=name, digest=digest * 64) for name in tasks),
        agents=tuple(PlannedAgent(label=name, slug=name, spec=AgentSpec(name=name)) for name in agents),
    )


def outcomes(of: Plan, *rewards: float | None, uses: int | None = 0) -> Outcomes:
    """Return a job whose trials got these rewards, in order of index; None = no verdict."""
    return Outcomes(of, [receipt(index, reward, uses) for index, reward in enumerate(rewards)])


def receipt(index: int, reward: float | None, uses: int | None) -> Receipt:
    outcome = "errored" if reward is None else "passed" if reward >= 1 else "failed"
    code = "sandbox.lost" if reward is None else ""
    return Receipt(index, outcome, reward, code, 1, 1.0, None, None, "f", uses)


def only(lifts: tuple[AgentLift, ...]) -> AgentLift:
    (found,) = lifts
    return found


def told(lifts: tuple[AgentLift, ...]) -> list[str]:
    return [block.text for block in lift_report(lifts) if isinstance(block, Line) and block.text]


def rows(lifts: tuple[AgentLift, ...]) -> list[Any]:
    return [row.cells for block in lift_report(lifts) if isinstance(block, Table) for row in block.rows]


def test_a_lift_is_the_difference_of_the_rates_with_its_interval() -> None:
    of = plan("a", "b", "c", "d")

    found = only(skill_lift(outcomes(of, 1, 1, 1, 0.5, uses=2), outcomes(of, 1, 0, 0, 0)))

    assert (found.with_skill.rate, found.lift) == (0.75, 0.5)
    assert found.interval == pytest.approx((-0.1355, 0.7891), abs=1e-4)
    assert (found.with_skill.used, found.with_skill.mean_reward) == (4, 0.875)
    assert [(task.task, task.lift) for task in found.tasks] == [("a", 0), ("b", 1), ("c", 1), ("d", 0)]


def test_trials_without_a_verdict_are_no_part_of_a_rate_and_are_told() -> None:
    of = plan("a", "b")
    lifts = skill_lift(outcomes(of, 1, None), outcomes(of, None, None))

    assert (only(lifts).with_skill.rate, only(lifts).baseline.rate, only(lifts).lift) == (1.0, None, None)
    assert "solver: 3 without a verdict, left out" in told(lifts)


def test_only_tasks_and_agents_that_both_have_are_compared() -> None:
    one = outcomes(plan("a", "b", agents=("solver", "other")), 1, 0, 1, 1)
    two = outcomes(plan("b", "c"), 0, 1)

    found = only(skill_lift(one, two))

    assert (found.agent, [task.task for task in found.tasks]) == ("solver", ["b"])
    assert (found.with_skill.scored, found.lift) == (1, 1.0)


def test_jobs_with_nothing_in_common_are_refused() -> None:
    with pytest.raises(UsageError, match="no task of the same name and content"):
        skill_lift(outcomes(plan("a"), 1), outcomes(plan("a", digest="1"), 1))
    with pytest.raises(UsageError, match="no agent in common"):
        skill_lift(outcomes(plan("a"), 1), outcomes(plan("a", agents=("other",)), 1))


def test_trials_that_were_never_run_do_not_count() -> None:
    of = plan("a", tries=2)
    stopped = Receipt(1, "not_started", None, "", 0, 0.0, None, None, "")

    found = only(skill_lift(Outcomes(of, [receipt(0, 1, 0), stopped]), None))

    assert (found.with_skill.scored, found.with_skill.no_verdict) == (1, 0)


def test_the_tables_show_both_arms_and_the_lift() -> None:
    of = plan("a", "b")
    lifts = skill_lift(outcomes(of, 1, 1, uses=1), outcomes(of, 0, 0))

    assert rows(lifts) == [
        ("solver", "with-skill", "2/2", "1.00", "0.34 – 1.00", "1.00", "2/2", "0"),
        ("solver", "baseline", "0/2", "0.00", "0.00 – 0.66", "0.00", "0/2", "0"),
        ("solver", "LIFT", "+2", "+1.00", "0.07 – 1.00", "+1.00", "", ""),
        ("a", "1/1", "0/1", "+1.00"),
        ("b", "1/1", "0/1", "+1.00"),
    ]
    assert told(lifts) == []


def test_a_lift_that_may_be_none_and_a_skill_that_nobody_used_are_told() -> None:
    of = plan("a", "b")
    lifts = skill_lift(outcomes(of, 1, 1), outcomes(of, 0, 1))

    assert told(lifts) == [
        "solver used no skill in any trial that had some",
        "solver: the interval of the lift holds 0, so these 4 trials do not show one",
    ]


def test_without_a_baseline_there_is_no_lift() -> None:
    lifts = skill_lift(outcomes(plan("a", agents=("x", "y")), 1, 0, uses=None), None)

    assert rows(lifts) == [
        ("x", "with-skill", "1/1", "1.00", "0.21 – 1.00", "1.00", "–", "0"),
        ("y", "with-skill", "0/1", "0.00", "0.00 – 0.79", "0.00", "–", "0"),
        ("a", "x", "1/1"),
        ("a", "y", "0/1"),
    ]
