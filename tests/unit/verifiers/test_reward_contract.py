"""What counts as a reward, file by file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_workers.verifiers.reward import Rewards, read_rewards

VALUES = Path(__file__).parents[2] / "assets" / "cases" / "06-reward-shapes" / "values"
VALID = {"ok-newline": 1.0, "ok-blank-lines": 1.0, "ok-crlf": 0.5, "ok-bom": 1.0, "ok-exponent": 1.0}
INVALID = sorted(path.stem for path in VALUES.glob("bad-*.txt"))


def write(
    logs: Path, *, text: str | bytes | None = None, data: object = None, raw: str | None = None
) -> None:
    if text is not None:
        (logs / "reward.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    if data is not None or raw is not None:
        (logs / "reward.json").write_text(json.dumps(data) if raw is None else raw, encoding="utf-8")


def reward_of(logs: Path, data: object, **options: Any) -> Rewards:
    write(logs, data=data)
    return read_rewards(logs, **options)


def message_of(logs: Path, **options: Any) -> str:
    with pytest.raises(VerifierError) as caught:
        read_rewards(logs, **options)
    assert caught.value.code == "verifier.invalid_reward"
    assert caught.value.hint
    return caught.value.message


@pytest.mark.parametrize("name", sorted(VALID))
def test_a_number_with_blanks_around_it_is_a_reward(tmp_path: Path, name: str) -> None:
    write(tmp_path, text=(VALUES / f"{name}.txt").read_bytes())

    assert read_rewards(tmp_path).reward == VALID[name]


def test_every_bad_shape_is_there_to_be_refused() -> None:
    assert len(INVALID) == 16


@pytest.mark.parametrize("name", INVALID)
def test_a_text_that_is_not_one_number_in_range_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, text=(VALUES / f"{name}.txt").read_bytes())

    message = message_of(tmp_path)

    assert "reward.txt" in message
    assert len(message) < 200


def test_the_offending_text_is_quoted_and_shortened(tmp_path: Path) -> None:
    write(tmp_path, text="PASS " * 100)

    message = message_of(tmp_path)

    assert "'PASS PASS" in message
    assert "…" in message


def test_no_file_is_not_an_invalid_file(tmp_path: Path) -> None:
    with pytest.raises(VerifierError) as caught:
        read_rewards(tmp_path / "never-made")

    assert caught.value.code == "verifier.no_reward"
    assert "reward.txt" in caught.value.message


def test_a_bare_json_number_is_the_reward(tmp_path: Path) -> None:
    write(tmp_path, raw="0.75")

    assert read_rewards(tmp_path).reward == 0.75


@pytest.mark.parametrize(
    "raw", ["true", '"1"', "null", "[1]", "{", "", "NaN", "Infinity", "1e999", "9" * 5000]
)
def test_a_json_value_that_is_no_reward_is_refused(tmp_path: Path, raw: str) -> None:
    write(tmp_path, text="1", raw=raw)

    assert "reward.json" in message_of(tmp_path)


def test_a_broken_reward_json_is_not_replaced_by_reward_txt(tmp_path: Path) -> None:
    write(tmp_path, text="0", raw='{"reward": 1')

    assert "not valid JSON" in message_of(tmp_path)


def test_deep_nesting_is_an_error_and_no_crash(tmp_path: Path) -> None:
    write(tmp_path, raw='{"reward": 1, "details": ' + "[" * 200_000 + "]" * 200_000 + "}")

    assert "nested too deeply" in message_of(tmp_path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, raw='{"reward": 0, "reward": 1}')

    assert "'reward' twice" in message_of(tmp_path)


def test_a_string_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path, raw='{"reward": 1, "reason": "\\ud800"}')

    assert "reward.json" in message_of(tmp_path)


def test_numbers_beside_the_reward_are_named_and_not_averaged(tmp_path: Path) -> None:
    rewards = reward_of(tmp_path, {"reward": 1, "passed": 5, "total": 7.5})

    assert rewards.to_record() == {"reward": 1.0, "passed": 5.0, "total": 7.5}


def test_an_unknown_key_that_is_no_number_is_refused_and_named(tmp_path: Path) -> None:
    write(tmp_path, data={"reward": 1, "done": True, "note": "ok"})

    assert "'done'" in message_of(tmp_path)


def test_lenient_reading_ignores_unknown_keys_and_keeps_the_score(tmp_path: Path) -> None:
    rewards = reward_of(tmp_path, {"reward": 1, "done": True, "note": "ok", "passed": 5}, lenient=True)

    assert rewards.to_record() == {"reward": 1.0, "passed": 5.0}


def test_free_details_are_kept_as_they_are(tmp_path: Path) -> None:
    rewards = reward_of(tmp_path, {"reward": 0.5, "details": {"a": [1, None]}, "winner": "x"})

    assert rewards.to_record()["details"] == {"details": {"a": [1, None]}, "winner": "x"}


def test_details_too_large_for_a_result_are_left_in_their_file(tmp_path: Path) -> None:
    rewards = reward_of(tmp_path, {"reward": 0.5, "raw": "x" * 70_000})

    assert "reward.json" in rewards.details["omitted"]


@pytest.mark.parametrize("value", [True, "1", None, [1]])
def test_a_reward_that_is_no_number_is_refused(tmp_path: Path, value: object) -> None:
    write(tmp_path, data={"reward": value})

    assert "not a number" in message_of(tmp_path)


def test_a_whole_number_too_large_for_a_float_is_refused(tmp_path: Path) -> None:
    write(tmp_path, raw='{"reward": 1, "count": 1' + "0" * 400 + "}")

    assert "count is not a finite number" in message_of(tmp_path)


def test_a_declared_range_is_the_range(tmp_path: Path) -> None:
    write(tmp_path, text="-2.5")

    assert read_rewards(tmp_path, reward_range=(-3, 2)).reward == -2.5
    assert "outside the range [-1, 2]" in message_of(tmp_path, reward_range=(-1, 2))


def test_a_rounding_error_beyond_the_range_is_moved_onto_its_end(tmp_path: Path) -> None:
    write(tmp_path, text="1.0000000000000002")

    assert read_rewards(tmp_path).reward == 1.0


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    write(tmp_path, text="-0.0")

    assert str(read_rewards(tmp_path).reward) == "0.0"


def test_text_and_json_must_agree(tmp_path: Path) -> None:
    write(tmp_path, text="1", data={"reward": 0.9999})

    assert "must agree" in message_of(tmp_path)


def test_text_and_json_agree_up_to_rounding(tmp_path: Path) -> None:
    write(tmp_path, text="0.3", data={"reward": 0.30000000000000004})

    assert read_rewards(tmp_path).reward == 0.30000000000000004


def test_a_text_without_a_number_beside_a_json_reward_is_told_and_ignored(tmp_path: Path) -> None:
    write(tmp_path, text="PASS", data={"reward": 0.5})

    rewards = read_rewards(tmp_path)

    assert rewards.reward == 0.5
    assert "reward.txt" in rewards.warnings[0]


def test_the_text_is_the_reward_of_a_json_that_has_none(tmp_path: Path) -> None:
    write(tmp_path, text="0.25", data={"speed": 12})

    assert read_rewards(tmp_path).to_record() == {"reward": 0.25, "speed": 12.0}


def test_a_text_that_would_have_to_be_the_reward_must_be_a_number(tmp_path: Path) -> None:
    write(tmp_path, text="PASS", data={"speed": 12})

    assert "reward.txt" in message_of(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        {"metrics": {"right": 1, "tidy": 0.5}},
        {"correctness": 1, "performance": 0},
        {"rubric": [{"score": 1}]},
        {},
    ],
)
def test_numbers_without_a_reward_or_a_rule_are_no_score(tmp_path: Path, data: object) -> None:
    write(tmp_path, data=data)

    assert "no 'reward' and declares no aggregate" in message_of(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1", encoding="utf-8")
    (tmp_path / "reward.txt").symlink_to(tmp_path / "elsewhere")

    assert "cannot be read as a file" in message_of(tmp_path)


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reward.json").mkdir()

    assert "reward.json is not a regular file" in message_of(tmp_path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, text=b" " * (1 << 20) + b"1")

    assert "larger than 1048576 bytes" in message_of(tmp_path)


def test_counts_of_a_test_report_are_kept(tmp_path: Path) -> None:
    write(tmp_path, text="1")
    report = {"results": {"summary": {"tests": 3, "passed": 2, "failed": 1, "start": 12.5, "other": True}}}
    (tmp_path / "ctrf.json").write_text(json.dumps(report), encoding="utf-8")

    assert read_rewards(tmp_path).details == {"ctrf": {"tests": 3, "passed": 2, "failed": 1}}


@pytest.mark.parametrize("report", ["{", "[]", '{"results": 3}', '{"results": {"summary": []}}'])
def test_a_broken_test_report_costs_no_score(tmp_path: Path, report: str) -> None:
    write(tmp_path, text="1")
    (tmp_path / "ctrf.json").write_text(report, encoding="utf-8")

    assert read_rewards(tmp_path) == Rewards(1.0)
