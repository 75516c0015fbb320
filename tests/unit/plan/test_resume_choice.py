"""Each trial of a job that is taken up again is kept or runs, for a reason that can be read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.plan.retry import Choice, choose, find_trial, keep_finished
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Receipt
from tests.worlds import make_world


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_world(tmp_path, tries=10).plan


def receipt(index: int, outcome: str, code: str = "", reward: float | None = None) -> Receipt:
    return Receipt(index, outcome, reward, code, 1, 1.0, None, None, "")


RECEIPTS = [
    receipt(0, "passed", reward=1.0),
    receipt(1, "failed", "agent.timeout", reward=0.25),
    receipt(2, "verifier_errored", "verifier.sandbox_lost"),
    receipt(3, "verifier_errored", "verifier.timeout"),
    receipt(4, "verifier_errored", "verifier.invalid_reward"),
    receipt(5, "cancelled"),
    receipt(6, "not_started"),
    receipt(7, "errored", "newer.code"),
]


def told(choice: Choice) -> dict[int, tuple[bool, str]]:
    return {item.index: (item.is_again, item.reason) for item in choice.decisions}


def test_verdicts_and_broken_tests_are_kept_and_the_rest_runs_again(plan: Plan) -> None:
    choice = choose(plan, RECEIPTS, began={plan.trial(8).id})

    assert told(choice) == {
        0: (False, "passed, reward 1"),
        1: (False, "failed, reward 0.25"),
        2: (True, "sandbox died before a verdict (verifier.sandbox_lost)"),
        3: (True, "verifier ran out of time (verifier.timeout)"),
        4: (False, "reward is not valid (verifier.invalid_reward)"),
        5: (True, "cancelled"),
        6: (True, "not started"),
        7: (True, "newer.code"),
        8: (True, "interrupted"),
        9: (True, "never started"),
    }
    assert (choice.again, choice.n_kept) == ([2, 3, 5, 6, 7, 8, 9], 3)


def test_what_was_asked_for_runs_and_what_never_ended_in_any_case(plan: Plan) -> None:
    choice = choose(plan, RECEIPTS, ("verifier.invalid_reward", "not_started"))

    assert choice.again == [4, 6, 8, 9]
    assert told(choice)[2] == (False, "sandbox died before a verdict (verifier.sandbox_lost)")


def test_a_word_that_is_unknown_is_refused_before_anything_is_decided(plan: Plan) -> None:
    with pytest.raises(UsageError, match="'everything' is neither"):
        choose(plan, RECEIPTS, ("everything",))


def test_a_recovered_job_keeps_everything_that_finished(plan: Plan) -> None:
    choice = keep_finished(plan, RECEIPTS)

    assert (choice.again, choice.n_kept) == ([8, 9], 8)


def test_trials_that_were_stopped_again_did_not_run(plan: Plan) -> None:
    choice = choose(plan, RECEIPTS)

    assert choice.n_ended(Counter(passed=7, cancelled=0)) == 7
    assert choice.n_ended(Counter(passed=3, cancelled=2, not_started=1)) == 4
    kept = choose(plan, RECEIPTS, ("verifier.timeout",))
    assert kept.n_ended(Counter(cancelled=1, not_started=1)) == len(kept.again) == 3


def test_a_trial_is_found_by_its_id(plan: Plan) -> None:
    assert find_trial(plan, plan.trial(4).id) == 4
    with pytest.raises(UsageError, match="has no trial 'nothing'"):
        find_trial(plan, "nothing")
