"""The criteria a reward kit declares: which metrics it must write, and how they become the reward."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_workers.verifiers.aggregate import combine, parse_policy
from benchflow_workers.verifiers.reward import AGREEMENT, Rewards
from benchflow_workers.verifiers.reward_files import InvalidRewardError, quoted

__all__ = ["Criteria", "read_criteria"]


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a criteria file declares.

    Attributes:
        names: Names of the metrics, in order.
        policy: How they are combined, as `reward.json` would declare it.
    """

    names: tuple[str, ...]
    policy: Mapping[str, Any]

    def checked(self, rewards: Rewards) -> Rewards:
        """Return the verdict, where it is what the criteria make of the metrics.

        Raises:
            InvalidRewardError: The metrics are not those declared, or the kit's own reward is another.
        """
        if set(rewards.metrics) != set(self.names):
            written = ", ".join(sorted(rewards.metrics)) or "none"
            raise InvalidRewardError(
                f"The kit wrote the metrics {quoted(written)}; its criteria are {', '.join(self.names)}."
            )
        reward = combine(parse_policy(self.policy), rewards.metrics, {})
        if abs(rewards.reward - reward) > AGREEMENT:
            raise InvalidRewardError(
                f"The kit wrote the reward {rewards.reward:g}, but its criteria make {reward:g} of its metrics."
            )
        return rewards


def read_criteria(file: Path) -> Criteria:
    """Return what a criteria file declares: `[[criterion]]` with name and weight, `[scoring]`.

    Raises:
        InvalidRewardError: It cannot be read, or names no criterion, or one twice.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise InvalidRewardError(f"The criteria {file.name} cannot be read: {error}.") from error
    criteria, scoring = data.get("criterion"), data.get("scoring", {})
    if not isinstance(criteria, list) or not criteria or not isinstance(scoring, Mapping):
        raise InvalidRewardError(f"The criteria {file.name} declare no [[criterion]].")
    weights = {_name(item, file): item.get("weight", 1.0) for item in criteria}
    if len(weights) < len(criteria):
        raise InvalidRewardError(f"The criteria {file.name} name one criterion twice.")
    policy = {
        "method": scoring.get("aggregation", "weighted_mean"),
        "weights": weights,
        **({"threshold": scoring["threshold"]} if "threshold" in scoring else {}),
    }
    parse_policy(policy)
    return Criteria(tuple(weights), policy)


def _name(item: Any, file: Path) -> str:
    name = (item.get("name") or item.get("id")) if isinstance(item, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRewardError(f"A criterion of {file.name} has no name.")
    return name
