"""Counting receipts per agent, per task and per cause; one pass over any number of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from benchflow_client.errors import StoreError
from benchflow_client.schema.plan import Plan, PlannedAgent
from benchflow_client.schema.trial import NOT_RUN, SCORED, Outcome, Receipt

__all__ = ["Cause", "Tally", "tally_receipts"]


@dataclass(slots=True)
class Cause:
    """Trials of one agent that ended in one bucket for one cause."""

    count: int = 0
    retried: int = 0  # executions beyond the first of each trial
    repeated: int = 0  # trials executed more than once
    tasks: set[int] = field(default_factory=set)  # positions in the plan


@dataclass(slots=True)
class Tally:
    """What the receipts of one agent add up to; lists hold known values only."""

    agent: PlannedAgent
    is_control: bool
    task_passed: list[int]  # by position of the task
    task_scored: list[int]  # by position of the task
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Outcome), 0))
    rewards: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    skill_uses: list[int] = field(default_factory=list)
    partial: int = 0  # scored trials whose reward is neither 0 nor 1
    retried: int = 0  # executions beyond the first of each trial
    repeated: int = 0  # trials executed more than once
    recovered: int = 0  # of those, the ones with a verdict
    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)  # (outcome, code) ->

    @property
    def ended(self) -> int:
        """Trials with a receipt that nobody stopped."""
        return sum(self.outcomes.values()) - sum(self.outcomes[outcome] for outcome in NOT_RUN)

    @property
    def task_counts(self) -> list[tuple[int, int]]:
        """(passed, scored) of each task."""
        return list(zip(self.task_passed, self.task_scored, strict=True))

    def add(self, task: int, receipt: Receipt) -> None:
        """Count one trial of a task."""
        _, outcome, reward, code, attempts, *_ = receipt
        self.outcomes[outcome] += 1
        is_scored = outcome in SCORED
        if is_scored:
            self.task_scored[task] += 1
            self.task_passed[task] += outcome == Outcome.PASSED
            self._add_reward(reward)
        if outcome not in NOT_RUN:
            self._add_usage(receipt)
        if attempts > 1:
            self.retried += attempts - 1
            self.repeated += 1
            self.recovered += is_scored
        if code or not (is_scored or outcome in NOT_RUN):
            self._add_cause(task, outcome, code, attempts)

    def _add_reward(self, reward: float | None) -> None:
        if reward is not None and math.isfinite(reward):
            self.rewards.append(reward)
            self.partial += reward not in {0, 1}

    def _add_usage(self, receipt: Receipt) -> None:
        self.walls.append(receipt.wall_s)
        if receipt.cost_usd is not None:
            self.costs.append(receipt.cost_usd)
        if receipt.tokens is not None:
            self.tokens.append(receipt.tokens)
        if receipt.skill_uses is not None:
            self.skill_uses.append(receipt.skill_uses)

    def _add_cause(self, task: int, outcome: str, code: str, attempts: int) -> None:
        cause = self.causes.setdefault((str(outcome), code), Cause())
        cause.count += 1
        cause.retried += max(0, attempts - 1)
        cause.repeated += attempts > 1
        cause.tasks.add(task)


def tally_receipts(plan: Plan, receipts: Iterable[Receipt], controls: Set[str]) -> Sequence[Tally]:
    """Return one tally per agent, in the plan's order.

    Guarantees: a trial is counted once, by the first of its receipts.

    Raises:
        StoreError: A receipt is not of this plan or has an unknown outcome.
    """
    n_tasks, n_agents, size = len(plan.tasks), len(plan.agents), plan.size
    tallies = [
        Tally(agent, agent.spec.name in controls, [0] * n_tasks, [0] * n_tasks) for agent in plan.agents
    ]
    seen = bytearray(size)
    known = frozenset(Outcome)
    for receipt in receipts:
        index = receipt.trial_index
        if not 0 <= index < size or receipt.outcome not in known:
            raise _foreign(plan, receipt)
        if not seen[index]:
            seen[index] = 1
            pair, agent = divmod(index, n_agents)
            tallies[agent].add(pair % n_tasks, receipt)
    return tallies


def _foreign(plan: Plan, receipt: Receipt) -> StoreError:
    return StoreError(
        f"Receipt {receipt.to_json()} does not belong to job {plan.job!r}, which has trials 0 to "
        f"{plan.size - 1} and outcomes {', '.join(Outcome)}.",
        hint="Client and workers may be of different versions: use the same one everywhere.",
    )
