"""What skills change: the trials of agents with them beside the same agents' without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchflow_client.errors import UsageError
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import NOT_RUN, SCORED, Outcome, Receipt
from benchflow_client.stats.rates import design_effect, difference_interval, mean, wilson_interval

__all__ = ["AgentLift", "Arm", "Outcomes", "TaskLift", "skill_lift"]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a job came to: its plan and the receipts of its trials."""

    plan: Plan
    receipts: Sequence[Receipt]


@dataclass(frozen=True, slots=True)
class Arm:
    """Trials of one agent, all with or all without skills.

    Attributes:
        passed: Trials with reward 1.
        scored: Trials with a verdict.
        no_verdict: Trials that ended without one.
        rate: passed / scored, 0..1; None = nothing scored.
        interval: 95 % Wilson of rate; None = nothing scored.
        mean_reward: Mean over scored trials; None = nothing scored.
        used: Trials in which a skill was used; None = unknown.
    """

    passed: int
    scored: int
    no_verdict: int
    rate: float | None
    interval: tuple[float, float] | None
    mean_reward: float | None
    used: int | None


@dataclass(frozen=True, slots=True)
class TaskLift:
    """One task; `lift` is the difference of the rates, -1..1, None = one has none."""

    task: str
    with_skill: Arm
    baseline: Arm | None
    lift: float | None


@dataclass(frozen=True, slots=True)
class AgentLift:
    """One agent over all tasks; `interval` is that of `lift`, 95 %."""

    agent: str
    model: str | None
    with_skill: Arm
    baseline: Arm | None
    lift: float | None
    interval: tuple[float, float] | None
    tasks: tuple[TaskLift, ...]


def skill_lift(with_skill: Outcomes, baseline: Outcomes | None) -> tuple[AgentLift, ...]:
    """Return what skills changed for each agent that both jobs have, over the tasks that both have.

    Args:
        with_skill: A job whose agents have skills.
        baseline: One whose agents have none; None = there is none to compare with.

    Raises:
        UsageError: No agent is in both, or no task with the same content.
    """
    tasks, agents = _common(with_skill.plan, baseline)
    return tuple(_agent_lift(agent, tasks, with_skill, baseline) for agent in agents)


def _common(plan: Plan, baseline: Outcomes | None) -> tuple[list[str], list[str]]:
    """Return the names of tasks and the labels of agents that both jobs have."""
    other = plan if baseline is None else baseline.plan
    same = {(task.name, task.digest) for task in other.tasks}
    tasks = [task.name for task in plan.tasks if (task.name, task.digest) in same]
    labels = {agent.label for agent in other.agents}
    agents = [agent.label for agent in plan.agents if agent.label in labels]
    if not tasks or not agents:
        what = "task of the same name and content" if agents else "agent"
        raise UsageError(
            f"Jobs {plan.job!r} and {other.job!r} have no {what} in common.",
            hint="Run the same agents on the same tasks with and without skills.",
        )
    return tasks, agents


def _agent_lift(
    agent: str, tasks: Sequence[str], with_skill: Outcomes, baseline: Outcomes | None
) -> AgentLift:
    ours = _by_task(with_skill, agent)
    theirs = None if baseline is None else _by_task(baseline, agent)
    rows = tuple(
        _task_lift(task, ours.get(task, []), None if theirs is None else theirs.get(task, []))
        for task in tasks
    )
    one = _arm([receipt for task in tasks for receipt in ours.get(task, [])], _effect(ours, tasks))
    model = next(found.spec.model for found in with_skill.plan.agents if found.label == agent)
    if theirs is None:
        return AgentLift(agent, model, one, None, None, None, rows)
    two = _arm([receipt for task in tasks for receipt in theirs.get(task, [])], _effect(theirs, tasks))
    lift = _difference(one, two)
    effects = _effect(ours, tasks), _effect(theirs, tasks)
    counts = (one.passed, one.scored), (two.passed, two.scored)
    interval = None if lift is None else difference_interval(*counts, effects=effects)
    return AgentLift(agent, model, one, two, lift, interval, rows)


def _task_lift(task: str, ours: Sequence[Receipt], theirs: Sequence[Receipt] | None) -> TaskLift:
    one = _arm(ours)
    two = None if theirs is None else _arm(theirs)
    return TaskLift(task, one, two, None if two is None else _difference(one, two))


def _by_task(outcomes: Outcomes, agent: str) -> dict[str, list[Receipt]]:
    """Return the receipts of an agent's trials that ran, by the name of the task."""
    found: dict[str, list[Receipt]] = {}
    for receipt in outcomes.receipts:
        trial = outcomes.plan.trial(receipt.trial_index)
        if trial.agent.label == agent and receipt.outcome not in NOT_RUN:
            found.setdefault(trial.task.name, []).append(receipt)
    return found


def _effect(receipts: dict[str, list[Receipt]], tasks: Iterable[str]) -> float:
    return design_effect([_counts(receipts.get(task, [])) for task in tasks])


def _counts(receipts: Sequence[Receipt]) -> tuple[int, int]:
    """Return how many passed, and how many have a verdict."""
    scored = [receipt for receipt in receipts if receipt.outcome in SCORED]
    return sum(receipt.outcome == Outcome.PASSED for receipt in scored), len(scored)


def _arm(receipts: Sequence[Receipt], effect: float = 1.0) -> Arm:
    passed, scored = _counts(receipts)
    known = [receipt.skill_uses for receipt in receipts if receipt.skill_uses is not None]
    rewards = [receipt.reward for receipt in receipts if receipt.outcome in SCORED]
    return Arm(
        passed=passed,
        scored=scored,
        no_verdict=len(receipts) - scored,
        rate=passed / scored if scored else None,
        interval=wilson_interval(passed, scored, effect=effect) if scored else None,
        mean_reward=mean(reward for reward in rewards if reward is not None),
        used=sum(uses > 0 for uses in known) if known else None,
    )


def _difference(one: Arm, two: Arm) -> float | None:
    return None if one.rate is None or two.rate is None else one.rate - two.rate
