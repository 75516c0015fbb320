"""How a declared rule makes one reward of several numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_workers.verifiers.reward import Rewards, read_rewards

METRICS = {"a": 1, "b": 0.5}


def read(logs: Path, data: object, policy: Mapping[str, Any] | None = None) -> Rewards:
    (logs / "reward.json").write_text(json.dumps(data), encoding="utf-8")
    return read_rewards(logs, policy=policy)


@pytest.mark.parametrize(
    ("rule", "reward"),
    [
        ({"method": "mean"}, 0.75),
        ({"method": "weighted_mean", "weights": {"a": 3}}, 0.875),
        ({"method": "weighted_sum", "weights": {"a": 0.25, "b": 0.5}}, 0.5),
        ({"method": "all_pass"}, 1.0),
        ({"method": "all_pass", "threshold": 0.6}, 0.0),
        ({"method": "any_pass", "threshold": 0.6}, 1.0),
        ({"method": "any_pass", "threshold": 1.5}, 0.0),
        ({"method": "threshold"}, 1.0),
        ({"method": "threshold", "threshold": 0.8}, 0.0),
        ({"method": "threshold", "primary": "b"}, 0.0),
        ({"method": "threshold", "primary": "a", "threshold": 1}, 1.0),
        ({"primary": "b"}, 0.5),
    ],
)
def test_a_rule_makes_the_reward(tmp_path: Path, rule: dict[str, Any], reward: float) -> None:
    rewards = read(tmp_path, {"metrics": METRICS, "aggregate": rule})

    assert rewards.to_record() == {"reward": reward, "metrics": {"a": 1.0, "b": 0.5}}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("mean", "not a table"),
        ({"method": "median"}, "'median'"),
        ({"methd": "mean"}, "'methd'"),
        ({"weights": {"a": 1}}, "neither a method nor a primary"),
        ({"primary": 3}, "not a name"),
        ({"primary": "c"}, "'c', which is not among a, b"),
        ({"method": "threshold", "threshold": True}, "threshold"),
        ({"method": "weighted_sum", "weights": {"a": 1}}, "no weight for 'b'"),
        ({"method": "weighted_mean", "weights": {"a": 0, "b": 0}}, "sum to 0"),
        ({"method": "mean", "weights": {"c": 1}}, "'c', which has no number"),
        ({"method": "mean", "weights": {"a": -1}}, "weights.a"),
        ({"method": "mean", "weights": [1]}, "not a table"),
        ({"method": "weighted_sum", "weights": {"a": 2, "b": 2}}, "outside the range"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(tmp_path: Path, rule: object, said: str) -> None:
    with pytest.raises(VerifierError) as caught:
        read(tmp_path, {"metrics": METRICS, "aggregate": rule})

    assert caught.value.code == "verifier.invalid_reward"
    assert said in caught.value.message


def test_a_rule_without_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match="no metrics, rubric or named numbers"):
        read(tmp_path, {"aggregate": {"method": "mean"}})


def test_a_given_reward_beats_the_rule(tmp_path: Path) -> None:
    rewards = read(tmp_path, {"reward": 0.1, "metrics": METRICS, "aggregate": {"method": "mean"}})

    assert rewards.reward == 0.1


def test_the_rule_of_the_task_is_used_where_the_file_has_none(tmp_path: Path) -> None:
    rewards = read(tmp_path, {"correctness": 1, "performance": 0}, {"method": "mean"})

    assert rewards.to_record() == {"reward": 0.5, "correctness": 1.0, "performance": 0.0}


def test_a_rubric_brings_its_own_weights(tmp_path: Path) -> None:
    rubric = [{"name": "fit", "score": 1, "weight": 3, "reason": "good"}, {"score": 0}]

    rewards = read(tmp_path, {"rubric": rubric, "aggregate": {"method": "weighted_mean"}})

    assert rewards.reward == 0.75
    assert rewards.rubric[0] == {"name": "fit", "score": 1.0, "weight": 3.0, "reason": "good"}


@pytest.mark.parametrize(
    ("rubric", "said"),
    [
        ("good", "not a list of objects"),
        ([1], "not a list of objects"),
        ([{"name": "a"}], "rubric[0].score"),
        ([{"score": 1}, {"score": 1.5}], "rubric[1].score is 1.5, outside [0, 1]"),
        ([{"score": 1, "name": 3}], "rubric[0].name"),
        ([{"score": 1, "weight": -1}], "rubric[0].weight"),
        ([{"score": 1, "name": "a"}, {"score": 1, "name": "a"}], "one name"),
    ],
)
def test_a_malformed_rubric_is_refused(tmp_path: Path, rubric: object, said: str) -> None:
    with pytest.raises(VerifierError) as caught:
        read(tmp_path, {"rubric": rubric, "aggregate": {"method": "mean"}})

    assert said in caught.value.message


@pytest.mark.parametrize("metrics", [[1], {"a": True}, {"a": "1"}])
def test_malformed_metrics_are_refused(tmp_path: Path, metrics: object) -> None:
    with pytest.raises(VerifierError, match="metrics"):
        read(tmp_path, {"reward": 1, "metrics": metrics})
