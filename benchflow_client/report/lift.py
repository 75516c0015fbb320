"""What skills change, as tables: each agent with them and without, then each task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchflow_client.report.blocks import Column, Line, Report, Row, Table
from benchflow_client.results.lift import AgentLift, Arm, TaskLift
from benchflow_client.wording import NONE, ratio

__all__ = ["lift_record", "lift_report"]

_MODES = ("with-skill", "baseline", "LIFT")


def lift_report(lifts: Sequence[AgentLift]) -> Report:
    """Return the numbers of every agent, then of every task, then what a reader should know."""
    has_several = len(lifts) > 1
    columns = (
        Column("agent", shrink=1),
        Column("skills"),
        Column("passed", "right"),
        Column("score", "right"),
        Column("95% interval", "right", short="95%"),
        Column("mean reward", "right", short="reward", is_optional=True),
        Column("used a skill", "right", short="used", is_optional=True),
        Column("no verdict", "right"),
    )
    numbers = Table(columns, tuple(row for lift in lifts for row in _agent_rows(lift)))
    first = (Column("task", shrink=1), *((Column("agent", shrink=2),) if has_several else ()))
    per_task = Table(
        (*first, *(Column(mode, "right") for mode in (_MODES if lifts[0].baseline else _MODES[:1]))),
        tuple(_task_row(lift, task, has_several=has_several) for lift in lifts for task in lift.tasks),
    )
    return (numbers, Line(""), per_task, *_remarks(lifts))


def lift_record(lifts: Sequence[AgentLift]) -> list[dict[str, Any]]:
    """Return the same numbers as plain JSON data."""
    return [asdict(lift) for lift in lifts]


def _agent_rows(lift: AgentLift) -> Iterator[Row]:
    yield _arm_row(lift.agent, _MODES[0], lift.with_skill)
    if lift.baseline is None:
        return
    yield _arm_row(lift.agent, _MODES[1], lift.baseline)
    one, two = lift.with_skill, lift.baseline
    passed = f"{one.passed - two.passed:+d}" if one.scored == two.scored else NONE
    rewards = (
        None if one.mean_reward is None or two.mean_reward is None else one.mean_reward - two.mean_reward
    )
    cells = (lift.agent, _MODES[2], passed, _signed(lift.lift), _between(lift.interval), _signed(rewards))
    yield Row((*cells, "", ""), tone=_tone(lift.interval))


def _arm_row(agent: str, mode: str, arm: Arm) -> Row:
    used = NONE if arm.used is None else f"{arm.used}/{arm.scored + arm.no_verdict}"
    numbers = (f"{arm.passed}/{arm.scored}", ratio(arm.rate), _between(arm.interval), ratio(arm.mean_reward))
    return Row((agent, mode, *numbers, used, str(arm.no_verdict)))


def _task_row(lift: AgentLift, task: TaskLift, *, has_several: bool) -> Row:
    names = (task.task, lift.agent) if has_several else (task.task,)
    one = f"{task.with_skill.passed}/{task.with_skill.scored}"
    if task.baseline is None:
        return Row((*names, one))
    return Row((*names, one, f"{task.baseline.passed}/{task.baseline.scored}", _signed(task.lift)))


def _remarks(lifts: Sequence[AgentLift]) -> Iterator[Line]:
    for lift in lifts:
        arms = [lift.with_skill, *filter(None, [lift.baseline])]
        if lift.with_skill.used == 0:
            text = f"{lift.agent} used no skill in any trial that had some"
            yield Line(text, label="note", tone="warn")
        if lift.interval is not None and lift.interval[0] <= 0 <= lift.interval[1]:
            n = sum(arm.scored for arm in arms)
            text = f"{lift.agent}: the interval of the lift holds 0, so these {n} trials do not show one"
            yield Line(text, label="note", tone="warn")
        missing = sum(arm.no_verdict for arm in arms)
        if missing:
            yield Line(f"{lift.agent}: {missing} without a verdict, left out", label="note", tone="warn")


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.2f}"


def _between(interval: tuple[float, float] | None) -> str:
    return NONE if interval is None else f"{interval[0]:.2f} – {interval[1]:.2f}"


def _tone(interval: tuple[float, float] | None) -> Any:
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "plain"
    return "good" if interval[0] > 0 else "bad"
