"""What a run's exit code says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchflow_client.cli.run import exit_code
from benchflow_client.schema.trial import Receipt
from benchflow_client.summary import aggregate
from tests.worlds import make_world


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (("passed", "passed", "passed"), 0),
        (("passed", "failed", "failed"), 0),
        (("passed", "cancelled", "cancelled"), 0),
        (("passed", "passed", "errored"), 1),
        (("passed", "passed", "verifier_errored"), 1),
        (("passed", "passed", "unscored"), 1),
        (("passed", "passed", "not_started"), 1),
        (("not_started", "not_started", "not_started"), 1),
    ],
)
def test_a_run_exits_with_1_when_a_trial_that_nobody_cancelled_has_no_verdict(
    tmp_path: Path, outcomes: Sequence[str], code: int
) -> None:
    plan = make_world(tmp_path, tries=3).plan
    rewards = {"passed": 1.0, "failed": 0.0}
    receipts = [
        Receipt(index, outcome, rewards.get(outcome), "", 1, 1.0, None, None, "")
        for index, outcome in enumerate(outcomes)
    ]

    assert exit_code(aggregate(plan, receipts, elapsed_s=1.0)) == code
