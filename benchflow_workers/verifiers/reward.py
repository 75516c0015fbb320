"""The verdict in the reward files of a test script: the whole contract of 'what is the score'.

`ScriptVerifier.judge` calls it; it is pure apart from reading the files. How files are
read is in `reward_files`, how a policy combines numbers in `aggregate`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchflow_client.errors import VerifierError
from benchflow_workers.verifiers.aggregate import combine, parse_policy
from benchflow_workers.verifiers.reward_files import (
    InvalidRewardError,
    is_number,
    parse_json,
    parse_number,
    quoted,
    read_counts,
    read_file,
)

__all__ = ["Rewards", "read_rewards"]

REWARD_TEXT = "reward.txt"
"""One number."""

REWARD_JSON = "reward.json"
"""A number, or an object with named numbers; preferred over `reward.txt`."""

CTRF_JSON = "ctrf.json"
"""Report of single tests in the Common Test Report Format."""

DEFAULT_RANGE = (0.0, 1.0)
"""Rewards a task may give that does not declare a range."""

AGREEMENT = 1e-9
"""How far two statements of one reward may lie apart, and how far rounding may leave the range."""

DETAILS_LIMIT_BYTES = 64 << 10
"""Free details above this stay in the trial's `reward.json` and out of its result."""

PASS_THROUGH = frozenset([
    "artifacts",
    "debug",
    "details",
    "details_path",
    "errors",
    "evidence",
    "granularity",
    "items",
    "metadata",
    "participants",
    "raw",
    "reason",
    "reasons",
    "regressions",
    "space",
    "winner",
])
"""Keys of `reward.json` that are kept as they are and never counted."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """A verdict.

    Attributes:
        reward: The scalar, within the task's range.
        named: Further numbers by name; finite, no range.
        rubric: Criteria, each with a `score` in [0, 1].
        metrics: Numbers beside the score, or those it was made of; finite.
        details: Free details, and the counts of `ctrf.json` under `ctrf`.
        warnings: What a reader of the number should know.
    """

    reward: float
    named: Mapping[str, float] = field(default_factory=dict)
    rubric: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def to_record(self) -> dict[str, Any]:
        """Return what `result.json` keeps: reward, named numbers, and the parts that are not empty."""
        parts = {
            "rubric": [dict(item) for item in self.rubric],
            "metrics": dict(self.metrics),
            "details": dict(self.details),
        }
        return {"reward": self.reward, **self.named, **{key: part for key, part in parts.items() if part}}


@dataclass(frozen=True, slots=True)
class _Statement:
    """What `reward.json` says, before it is known whether that makes a verdict."""

    scalar: float | None = None
    named: Mapping[str, float] = field(default_factory=dict)
    rubric: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    policy: object = None


def read_rewards(
    logs: Path,
    *,
    reward_range: tuple[float, float] | None = None,
    policy: Mapping[str, Any] | None = None,
    lenient: bool = False,
) -> Rewards:
    """Read the verdict from a copy of `/logs/verifier`.

    `reward.json` is preferred, and a scalar in `reward.txt` must agree with it. A bare
    JSON number is a reward. Without a scalar in either, an aggregate policy makes one.

    Args:
        logs: Folder on the worker; links in it are never followed.
        reward_range: Allowed rewards [lo, hi]; None = [0, 1].
        policy: Aggregate policy of the task, used where `reward.json` has none.
        lenient: Ignore unknown keys that are not numbers instead of refusing them.

    Raises:
        VerifierError: `verifier.no_reward` when no file says anything,
            `verifier.invalid_reward` when one says something that is not allowed.
    """
    bounds = reward_range or DEFAULT_RANGE
    text, document = read_file(logs / REWARD_TEXT), read_file(logs / REWARD_JSON)
    if document is not None:
        rewards = _from_json(document, text, policy, bounds, lenient=lenient)
    elif text is not None:
        rewards = Rewards(_in_range(parse_number(text, REWARD_TEXT), bounds, REWARD_TEXT))
    else:
        raise VerifierError(
            "verifier.no_reward",
            f"The tests wrote neither /logs/verifier/{REWARD_TEXT} nor /logs/verifier/{REWARD_JSON}.",
            hint="Let the test script write a number there on every path, failing checks included.",
        )
    counts = read_counts(logs / CTRF_JSON)
    return replace(rewards, details={**rewards.details, "ctrf": counts}) if counts else rewards


def _from_json(
    document: bytes,
    text: bytes | None,
    policy: Mapping[str, Any] | None,
    bounds: tuple[float, float],
    *,
    lenient: bool,
) -> Rewards:
    """Return the verdict of `reward.json` and, where there is one, of `reward.txt` beside it."""
    said = _parse_statement(document, lenient=lenient)
    scalar = said.scalar
    if scalar is None and (rules := said.policy if said.policy is not None else policy) is not None:
        scalar = _aggregate(rules, said)
    from_text, warnings = _parse_beside(text, scalar)
    if scalar is None:
        scalar = from_text
    elif from_text is not None and abs(scalar - from_text) > AGREEMENT:
        raise InvalidRewardError(
            f"{REWARD_JSON} says {scalar:g}, but {REWARD_TEXT} says {from_text:g}; they must agree."
        )
    if scalar is None:
        raise InvalidRewardError(
            f"{REWARD_JSON} has no 'reward' and declares no aggregate, so {_names(said)} make no score."
        )
    reward = _in_range(scalar, bounds, REWARD_JSON)
    return Rewards(reward, said.named, said.rubric, said.metrics, _bounded(said.details), warnings)


def _parse_beside(text: bytes | None, scalar: float | None) -> tuple[float | None, tuple[str, ...]]:
    """Return the number of a `reward.txt` that stands beside a `reward.json`.

    A text that is no number carries no scalar: it cannot contradict one that the
    preferred file gives, and it is an error where it would have to be the reward.
    """
    if text is None:
        return None, ()
    try:
        return parse_number(text, REWARD_TEXT), ()
    except InvalidRewardError as error:
        if scalar is None:
            raise
        return None, (f"{error.message} It was ignored: {REWARD_JSON} counts.",)


def _parse_statement(document: bytes, *, lenient: bool) -> _Statement:
    """Sort the keys of `reward.json` by what they mean."""
    data = parse_json(document, REWARD_JSON)
    if is_number(data):
        return _Statement(_finite(data, "its value"))
    if not isinstance(data, dict):
        raise InvalidRewardError(f"{REWARD_JSON} holds {quoted(document)}, not a number or an object.")
    known = PASS_THROUGH | {"reward", "rubric", "metrics", "aggregate"}
    unknown = {key: value for key, value in data.items() if key not in known}
    odd = sorted(key for key, value in unknown.items() if not is_number(value))
    if odd and not lenient:
        raise InvalidRewardError(
            f"{REWARD_JSON}: key {quoted(odd[0])} is neither a number nor known to the contract."
        )
    return _Statement(
        _finite(data["reward"], "reward") if "reward" in data else None,
        {key: _finite(value, key) for key, value in unknown.items() if key not in odd},
        _rubric(data.get("rubric", [])),
        _metrics(data.get("metrics", {})),
        {key: value for key, value in data.items() if key in PASS_THROUGH},
        data.get("aggregate"),
    )


def _finite(value: object, key: str) -> float:
    """Return a JSON number as a finite float."""
    if not is_number(value):
        raise InvalidRewardError(f"{REWARD_JSON}: {key} is {quoted(json.dumps(value))}, not a number.")
    try:
        number = float(value)  # type: ignore[arg-type]  # is_number has just said so
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRewardError(f"{REWARD_JSON}: {key} is not a finite number.")
    return number


def _rubric(items: object) -> tuple[dict[str, Any], ...]:
    """Return a checked rubric; further keys of an item are kept."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRewardError(f"{REWARD_JSON}: rubric is not a list of objects.")
    return tuple(_criterion(item, f"rubric[{position}]") for position, item in enumerate(items))


def _criterion(item: dict[str, Any], place: str) -> dict[str, Any]:
    score = _finite(item.get("score"), f"{place}.score")
    if not 0 <= score <= 1:
        raise InvalidRewardError(f"{REWARD_JSON}: {place}.score is {score:g}, outside [0, 1].")
    if not isinstance(item.get("name", ""), str):
        raise InvalidRewardError(f"{REWARD_JSON}: {place}.name is not a text.")
    checked = {**item, "score": score}
    if "weight" in item:
        checked["weight"] = _finite(item["weight"], f"{place}.weight")
        if checked["weight"] < 0:
            raise InvalidRewardError(f"{REWARD_JSON}: {place}.weight is below 0.")
    return checked


def _metrics(table: object) -> dict[str, float]:
    if not isinstance(table, dict):
        raise InvalidRewardError(f"{REWARD_JSON}: metrics is not an object of numbers.")
    return {key: _finite(value, f"metrics.{key}") for key, value in table.items()}


def _aggregate(rules: object, said: _Statement) -> float:
    """Return the reward a policy makes of the metrics, else the rubric, else the named numbers."""
    if said.metrics or not said.rubric:
        return combine(parse_policy(rules), said.metrics or said.named, {})
    names = [str(item.get("name") or position) for position, item in enumerate(said.rubric)]
    if len(set(names)) < len(names):
        raise InvalidRewardError(f"{REWARD_JSON}: two criteria of the rubric have one name.")
    scores = {name: item["score"] for name, item in zip(names, said.rubric, strict=True)}
    weights = {
        name: item["weight"] for name, item in zip(names, said.rubric, strict=True) if "weight" in item
    }
    return combine(parse_policy(rules), scores, weights)


def _in_range(value: float, bounds: tuple[float, float], name: str) -> float:
    """Return the reward, a rounding error beyond an end of the range moved onto it."""
    low, high = bounds
    if not low - AGREEMENT <= value <= high + AGREEMENT:
        raise InvalidRewardError(f"{name} says {value:g}, outside the range [{low:g}, {high:g}].")
    return min(max(value, low), high) + 0.0


def _names(said: _Statement) -> str:
    """Return what a statement has instead of a reward, for a message."""
    names = [*said.named, *(f"metrics.{key}" for key in said.metrics), *(["rubric"] if said.rubric else [])]
    shown = ", ".join(names[:5])
    return quoted(shown) if shown else "its keys"


def _bounded(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return details small enough for a result, or a note that they are not."""
    size = len(json.dumps(details))
    if size <= DETAILS_LIMIT_BYTES:
        return details
    return {"omitted": f"{size} bytes of details are in {REWARD_JSON} only"}
