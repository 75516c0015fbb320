"""What another execution may change is run again; verdicts and broken tests are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.plan.retry import find_trial, select_retries
from benchflow_client.schema.trial import Receipt
from tests.worlds import make_world


def receipt(index: int, outcome: str, code: str = "") -> Receipt:
    reward = {"passed": 1.0, "failed": 0.0}.get(outcome)
    return Receipt(index, outcome, reward, code, 1, 1.0, None, None, "")


RECEIPTS = [
    receipt(0, "passed"),
    receipt(1, "failed"),
    receipt(2, "verifier_errored", "verifier.sandbox_lost"),
    receipt(3, "verifier_errored", "verifier.timeout"),
    receipt(4, "verifier_errored", "verifier.no_reward"),
    receipt(5, "errored", "sandbox.start_failed"),
    receipt(6, "errored", "agent.env_missing"),
    receipt(7, "errored", "sandbox.build_failed"),
    receipt(8, "cancelled"),
    receipt(9, "unscored"),
    receipt(10, "failed", "agent.timeout"),
]


@pytest.mark.parametrize(
    ("what", "chosen"),
    [
        ((), [2, 3, 5, 6, 8, 9]),
        (("unscored",), [2, 3, 4, 5, 6, 7, 9]),
        (("errored",), [2, 3, 4, 5, 6, 7]),
        (("cancelled",), [8]),
        (("verifier.no_reward",), [4]),
        (("cancelled", "agent.timeout"), [8, 10]),
    ],
)
def test_trials_are_chosen_by_group_and_code(what: tuple[str, ...], chosen: list[int]) -> None:
    assert select_retries(RECEIPTS, what) == chosen


def test_unknown_word_names_the_groups() -> None:
    with pytest.raises(UsageError, match="'everything' is neither") as caught:
        select_retries(RECEIPTS, ("everything",))

    assert "unscored, errored, cancelled" in caught.value.hint


def test_trial_is_found_by_its_id_and_an_unknown_one_shows_how_they_are_named(tmp_path: Path) -> None:
    plan = make_world(tmp_path, tries=3).plan

    assert [find_trial(plan, plan.trial(index).id) for index in range(3)] == [0, 1, 2]
    with pytest.raises(UsageError, match="has no trial 'fix-build'") as caught:
        find_trial(plan, "fix-build")
    assert plan.trial(0).id in caught.value.hint
