"""Loop strategies as users: an agent looks at its work again, told by the tests or by nobody."""

from __future__ import annotations

from benchflow_client.schema.loop import LoopStrategy
from benchflow_workers.users.base import RoundResult, User
from benchflow_workers.users.feedback import feedback_text

__all__ = ["SelfReview", "VerifyRetry", "loop_user"]

_NOT_ACCEPTED = "Your work so far is in the workspace. It was checked and is not accepted yet. Go on from it."
_REVIEW = (
    "Your work so far is in the workspace. Compare it with every point of the task above, try it out, and "
    "correct what is wrong. Change nothing where it is right."
)


class VerifyRetry:
    """Says that the work is not accepted, with feedback, until it is or no retry is left."""

    oracle_access = False

    def __init__(self, strategy: LoopStrategy) -> None:
        self.max_rounds = 1 + (strategy.k or 0)
        self._feedback = strategy.feedback or "none"

    def setup(self, instruction: str, solution: str | None) -> None:
        """Need nothing: the rounds tell all."""

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:
        """Return the task, behind it what the tests thought; None when they are content."""
        del round
        if round_result is None:
            return instruction
        if round_result.is_solved:
            return None
        said = feedback_text(round_result, self._feedback)
        return "\n\n".join(part for part in (instruction.rstrip("\n"), _NOT_ACCEPTED, said) if part)


class SelfReview:
    """Asks for a review of the work, again and again, and says nothing of the tests."""

    oracle_access = False

    def __init__(self, strategy: LoopStrategy) -> None:
        self.max_rounds = 1 + (strategy.k or 0)

    def setup(self, instruction: str, solution: str | None) -> None:
        """Need nothing: the rounds tell all."""

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> str | None:
        """Return the task, from the second round on with the request to review."""
        del round
        if round_result is None:
            return instruction
        return f"{instruction.rstrip(chr(10))}\n\n{_REVIEW}"


def loop_user(strategy: LoopStrategy) -> User | None:
    """Return the user of a strategy; None = the agent works once."""
    if strategy.strategy == "verify-retry":
        return VerifyRetry(strategy)
    return SelfReview(strategy) if strategy.strategy == "self-review" else None
