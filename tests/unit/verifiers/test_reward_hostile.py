"""Whatever tests write, the verdict is a finite number within its range, or a `VerifierError` with a known code."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow_client.errors import VerifierError
from benchflow_workers.verifiers.reward import Rewards, read_rewards

MANY = settings(max_examples=80, deadline=None, derandomize=True)

KEYS = st.sampled_from(
    ["reward", "rewards", "metrics", "rubric", "details", "name", "score", "weight", "aggregate", "method",
     "threshold", "reward_range", "results", "summary", "tests", "passed", "failed", "x", "", "é\n"]
)  # fmt: skip
NUMBERS = st.integers() | st.floats() | st.just(10**400) | st.sampled_from([0, 1, 0.5, -0.0, 1e-320])
DATA = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6) | st.sampled_from(["mean", "weighted_mean", "all_pass"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)  # fmt: skip


def read_or_refuse(folder: Path, **options: Any) -> Rewards | VerifierError:
    try:
        return read_rewards(folder, **options)
    except VerifierError as error:
        return error


def read(files: dict[str, bytes], **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        rewards = read_or_refuse(Path(folder), **options)
    if isinstance(rewards, VerifierError):
        assert rewards.code in {"verifier.no_reward", "verifier.invalid_reward"}
        return
    assert math.isfinite(rewards.reward)
    assert 0 <= rewards.reward <= 1
    numbers = (*rewards.named.values(), *rewards.metrics.values())
    assert all(math.isfinite(number) for number in numbers)


@MANY
@given(st.binary(max_size=60) | st.text(alphabet="0123456789.eE+-_ \n\tnaif,", max_size=20).map(str.encode))
def test_any_bytes_as_a_number(content):
    read({"reward.txt": content})


@MANY
@given(
    st.binary(max_size=80) | st.text(alphabet='{}[]":,0123456789.eE-truefalsnN ', max_size=60).map(str.encode)
)
def test_any_bytes_as_json(content):
    read({"reward.json": content})
    read({"reward.txt": b"1", "ctrf.json": content})


@MANY
@given(DATA, st.none() | st.dictionaries(KEYS, DATA, max_size=4), st.booleans())
def test_any_data_as_json_under_any_policy(data, policy, lenient):
    read({"reward.json": json.dumps(data).encode()}, policy=policy, lenient=lenient)


@MANY
@given(NUMBERS, NUMBERS)
def test_two_files_agree_or_are_refused(one, two):
    read({"reward.txt": str(one).encode(), "reward.json": json.dumps({"reward": two}).encode()})


@MANY
@given(DATA)
def test_any_data_as_a_test_report_changes_no_reward(data):
    report = {"results": {"summary": data}}
    read({"reward.txt": b"0.5", "ctrf.json": json.dumps(report).encode()})
