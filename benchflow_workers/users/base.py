"""What a user is to a trial: somebody who says what is wanted, sees how it went, and says more or nothing.

A user runs on the worker, beside the trial and outside the sandbox. So only users that are
installed on the workers are run: code that travels with a job is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["DEFAULT_ROUNDS", "RoundResult", "TestReport", "User"]

DEFAULT_ROUNDS = 5
"""Rounds of a user who does not say how many."""


@dataclass(frozen=True, slots=True)
class TestReport:
    """What the tests report of themselves in `ctrf.json`.

    Attributes:
        passed: Tests that passed; None = it does not say.
        total: Tests there are; None = it does not say.
        failed_names: Names of tests that did not pass and were not skipped.
    """

    __test__ = False  # the name makes pytest look for tests in it

    passed: int | None = None
    total: int | None = None
    failed_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round went.

    Attributes:
        round: Its number, from 0.
        trajectory: What the agent did in it, one JSON object an event.
        rewards: What the tests gave; None = they gave nothing, or were not asked.
        verifier_output: What they printed; None = they did not run. Secrets are masked.
        verifier_error: Why they gave nothing; None = they gave something, or were not asked.
        n_tool_calls: Tool calls in it.
        report: What they say of each of them.
    """

    round: int
    trajectory: Sequence[Mapping[str, Any]]
    rewards: Mapping[str, Any] | None
    verifier_output: str | None
    verifier_error: str | None
    n_tool_calls: int
    report: TestReport = TestReport()

    @property
    def is_solved(self) -> bool:
        """Whether the tests gave a reward of 1 or more."""
        reward = (self.rewards or {}).get("reward")
        return isinstance(reward, int | float) and not isinstance(reward, bool) and reward >= 1


class User(Protocol):
    """One user in one trial; each trial has a new one. Both methods may be `async`."""

    @property
    def max_rounds(self) -> int:
        """Rounds at most."""
        ...

    @property
    def oracle_access(self) -> bool:
        """Whether it is shown the task's solution, which the agent never is."""
        ...

    def setup(self, instruction: str, solution: str | None) -> object:
        """Learn what the task is, before the first round.

        Args:
            instruction: The task's prompt.
            solution: Text of its solution script; None = no access, or there is none.
        """
        ...

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> object:
        """Return what the agent is told in a round, or None to end.

        Args:
            round: Number of the round that would begin, from 0.
            instruction: What the task says at this point: its prompt, or that of the turn.
            round_result: How the round before went; None before the first.
        """
        ...
