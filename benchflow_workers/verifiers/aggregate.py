"""How several numbers of a verdict become the one reward, when a task asks for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from benchflow_workers.verifiers.reward_files import InvalidRewardError, is_number, quoted

__all__ = ["Policy", "combine", "parse_policy"]

Method = Literal["mean", "weighted_mean", "weighted_sum", "all_pass", "any_pass", "threshold"]
"""How numbers are combined."""

PASS_AT = 0.5
"""Default of `all_pass` and `any_pass`: a number counts as passed from here on."""

THRESHOLD = 0.7
"""Default of `threshold`: the mean that earns a reward of 1."""

_KEYS = frozenset({"method", "weights", "primary", "threshold"})


@dataclass(frozen=True, slots=True)
class Policy:
    """What a task declares.

    Attributes:
        method: How to combine; None = the primary number is the reward.
        weights: Weight by name, none negative.
        primary: Name of the number that `threshold`, or no method, looks at; None = all.
        threshold: Where a number or mean counts as passed; None = the method's default.
    """

    method: Method | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    primary: str | None = None
    threshold: float | None = None


def parse_policy(data: object) -> Policy:
    """Return the policy a table declares.

    Raises:
        InvalidRewardError: Unknown keys or method, or a value of the wrong kind.
    """
    if not isinstance(data, Mapping):
        raise InvalidRewardError("aggregate is not a table of method, weights, primary, threshold.")
    if unknown := sorted(set(data) - _KEYS):
        raise InvalidRewardError(f"aggregate has the unknown key {quoted(str(unknown[0]))}.")
    method, primary, threshold = data.get("method"), data.get("primary"), data.get("threshold")
    if method is not None and method not in get_args(Method):
        raise InvalidRewardError(
            f"aggregate.method is {quoted(str(method))}; it can be {', '.join(get_args(Method))}."
        )
    if method is None and primary is None:
        raise InvalidRewardError("aggregate names neither a method nor a primary number.")
    if primary is not None and not isinstance(primary, str):
        raise InvalidRewardError("aggregate.primary is not a name.")
    if threshold is not None and not (is_number(threshold) and math.isfinite(threshold)):
        raise InvalidRewardError(f"aggregate.threshold is {quoted(str(threshold))}, not a finite number.")
    return Policy(method, _parse_weights(data.get("weights")), primary, threshold)


def _parse_weights(data: Any) -> dict[str, float]:
    """Return weights by name; none given is an empty mapping."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise InvalidRewardError("aggregate.weights is not a table of numbers.")
    for name, weight in data.items():
        if not is_number(weight) or not math.isfinite(weight) or weight < 0:
            raise InvalidRewardError(f"aggregate.weights.{name} is not a finite number of 0 or more.")
    return {str(name): float(weight) for name, weight in data.items()}


def combine(policy: Policy, values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the reward a policy makes of named numbers.

    Args:
        policy: What the task declares.
        values: Numbers by name.
        weights: Weights that the numbers brought along (a rubric's); the policy's win.

    Raises:
        InvalidRewardError: No numbers, the primary one is missing, or weights that
            do not fit them.
    """
    if not values:
        raise InvalidRewardError("There is an aggregate policy, but no metrics, rubric or named numbers.")
    if policy.primary is not None and policy.primary not in values:
        raise InvalidRewardError(
            f"aggregate.primary is {quoted(policy.primary)}, which is not among {', '.join(sorted(values))}."
        )
    if strange := sorted(set(policy.weights) - set(values)):
        raise InvalidRewardError(f"aggregate.weights names {quoted(strange[0])}, which has no number.")
    if policy.method is None:
        return values[policy.primary or ""]
    return _METHODS[policy.method](policy, values, {**weights, **policy.weights})


Combiner = Callable[[Policy, Mapping[str, float], Mapping[str, float]], float]


def _mean(_: Policy, values: Mapping[str, float], __: Mapping[str, float]) -> float:
    return math.fsum(values.values()) / len(values)


def _weighted_mean(_: Policy, values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the mean in which a number without a weight counts once."""
    total = math.fsum(weights.get(name, 1.0) for name in values)
    if total == 0:
        raise InvalidRewardError("The weights of aggregate weighted_mean sum to 0.")
    return math.fsum(value * weights.get(name, 1.0) for name, value in values.items()) / total


def _weighted_sum(_: Policy, values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    if missing := sorted(set(values) - set(weights)):
        raise InvalidRewardError(f"aggregate weighted_sum has no weight for {quoted(missing[0])}.")
    return math.fsum(value * weights[name] for name, value in values.items())


def _all_pass(policy: Policy, values: Mapping[str, float], _: Mapping[str, float]) -> float:
    return float(all(value >= _pass_at(policy) for value in values.values()))


def _any_pass(policy: Policy, values: Mapping[str, float], _: Mapping[str, float]) -> float:
    return float(any(value >= _pass_at(policy) for value in values.values()))


def _threshold(policy: Policy, values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return 1 where the primary number, or the mean of all, reaches the threshold."""
    reached = _mean(policy, values, weights) if policy.primary is None else values[policy.primary]
    return float(reached >= (THRESHOLD if policy.threshold is None else policy.threshold))


def _pass_at(policy: Policy) -> float:
    return PASS_AT if policy.threshold is None else policy.threshold


_METHODS: dict[Method, Combiner] = {
    "mean": _mean,
    "weighted_mean": _weighted_mean,
    "weighted_sum": _weighted_sum,
    "all_pass": _all_pass,
    "any_pass": _any_pass,
    "threshold": _threshold,
}
