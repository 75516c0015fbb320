"""Loop strategies: how often an agent may look at its work again before the verdict, and what it is told then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from benchflow_client.schema.base import Document
from benchflow_client.schema.turns import RoundRow

__all__ = ["SINGLE_SHOT", "Feedback", "LoopReport", "LoopStrategy", "loop_report", "parse_loop"]

Strategy = Literal["single-shot", "verify-retry", "self-review"]
"""One attempt; further ones while the tests are not content; further ones without asking the tests."""

Feedback = Literal["none", "counts", "names", "raw"]
"""What a retry is told of the tests: nothing more, how many passed, which failed, what they printed."""

SINGLE_SHOT: Final = "single-shot"

_FEEDBACKS: Final = ("none", "counts", "names", "raw")
_PARAMETERS: Final = {"single-shot": (), "verify-retry": ("k", "feedback"), "self-review": ("k",)}
_DEFAULT_K: Final = 3
_MOST_K: Final = 50


class LoopStrategy(Document):
    """A strategy with its parameters."""

    strategy: Strategy = Field(description="Its name.")
    k: int | None = Field(default=None, ge=1, le=_MOST_K, description="Further iterations; None = none.")
    feedback: Feedback | None = Field(default=None, description="What a retry is told; None = nothing.")

    def __str__(self) -> str:
        given = {"k": self.k, "feedback": self.feedback}
        text = ",".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"{self.strategy}:{text}" if text else self.strategy

    @property
    def most_iterations(self) -> int:
        """Iterations at most, the first attempt included."""
        return 1 + (self.k or 0)

    def block(self) -> dict[str, Any]:
        """Return it as configurations and results show it."""
        return self.model_dump(mode="json", exclude={"schema_version"}, exclude_none=True)


class LoopReport(LoopStrategy):
    """What a loop came to in one trial."""

    iterations: int | None = Field(
        default=None, ge=0, description="Iterations that ended; None = the agent worked once, without a loop."
    )
    converged: bool | None = Field(
        default=None,
        description="Whether an iteration gave the tests a reward of 1; None = the tests were not asked.",
    )
    stop_reason: Literal["passed", "iterations_used", "failed"] | None = Field(
        default=None,
        description="Why it ended: the tests were content, no iteration was left, one could not be run; None = no loop.",
    )


def loop_report(strategy: LoopStrategy, rounds: Sequence[RoundRow]) -> LoopReport:
    """Return what a strategy came to in a trial with these rounds; none = the agent worked once."""
    if strategy.strategy == SINGLE_SHOT or not rounds:
        return LoopReport(**strategy.block())
    asks = strategy.strategy == "verify-retry"
    has_passed = asks and any(row.is_solved for row in rounds)
    is_used_up = len(rounds) >= strategy.most_iterations
    return LoopReport(
        **strategy.block(),
        iterations=len(rounds),
        converged=has_passed if asks else None,
        stop_reason="passed" if has_passed else "iterations_used" if is_used_up else "failed",
    )


def parse_loop(text: str) -> LoopStrategy:
    """Return a strategy written as `verify-retry:k=3,feedback=names`.

    Raises:
        ValueError: There is no such strategy or parameter, or a value is not allowed.
    """
    name, separator, rest = text.strip().partition(":")
    if name not in _PARAMETERS:
        raise ValueError(f"there are {', '.join(_PARAMETERS)}")
    given: dict[str, str] = {}
    for item in rest.split(",") if separator else ():
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _PARAMETERS[name] or key in given:
            known = ", ".join(_PARAMETERS[name]) or "no parameters"
            raise ValueError(f"{name} takes {known}, each once; {key!r} is none")
        given[key] = value
    if name == SINGLE_SHOT:
        return LoopStrategy(strategy="single-shot")
    feedback = given.get("feedback", "names")
    if feedback not in _FEEDBACKS:
        raise ValueError(f"feedback is one of {', '.join(_FEEDBACKS)}")
    k = given.get("k", str(_DEFAULT_K))
    if not k.isascii() or not k.isdecimal() or not 1 <= int(k[:9]) <= _MOST_K:
        raise ValueError(f"k is a whole number from 1 to {_MOST_K}")
    known_feedback = {"feedback": feedback} if name == "verify-retry" else {}
    return LoopStrategy.model_validate({"strategy": name, "k": int(k), **known_feedback})
