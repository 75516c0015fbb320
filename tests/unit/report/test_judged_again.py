"""Verdicts of a regrade stand beside a job's own numbers, which stay as they were."""

from __future__ import annotations

from datetime import UTC, datetime

from benchflow_client.report import judged_again_report, trials_report
from benchflow_client.report.blocks import Line, Table
from benchflow_client.results.regrades import Judgement


def judgement(trial: str, before: float | None, after: float | None, change: str, *, by: str) -> Judgement:
    return Judgement(
        id=by, trial=trial, folder=f"{trial}__1", judged_in="x__1", created_at=datetime(2026, 1, int(by[-1]), tzinfo=UTC),
        reason="", task_dir="tasks", sandbox="local", original_task_digest="a", task_digest="b", task_changed=True,
        original_rewards=None, original_reward=before, new_rewards=None, new_reward=after,
        status="failed" if after is None else "complete", verifier_error=None, change=change,
    )  # fmt: skip


def test_line_counts_the_changes_and_shows_both_numbers() -> None:
    found = [
        judgement("a", 0.0, 1.0, "fail->pass", by="r-1"),
        judgement("b", 0.25, 0.5, "reward 0.25 -> 0.5", by="r-2"),
        judgement("c", None, None, "same", by="r-2"),
    ]

    (line,) = judged_again_report(found)

    assert isinstance(line, Line)
    assert line.text == (
        "3 trials judged again: 1 fail->pass, 1 reward, 1 same · passed 0/3 -> 1/3, mean reward 0.12 -> 0.75 · by r-2, r-1"
    )


def test_job_nobody_judged_again_says_nothing() -> None:
    assert judged_again_report([]) == ()


def test_table_of_trials_has_the_later_reward_beside_the_first() -> None:
    row = {
        "task": "t",
        "agent": "a",
        "try": 1,
        "outcome": "failed",
        "reward": 0.0,
        "code": None,
        "folder": "t__1",
    }

    (plain,) = trials_report([row])
    (again,) = trials_report([row, {**row, "regrade.id": "r-1", "regrade.reward": 1.0}])

    assert isinstance(plain, Table)
    assert isinstance(again, Table)
    assert "again" not in [column.title for column in plain.columns]
    assert [column.title for column in again.columns][4:6] == ["reward", "again"]
    assert [line.cells[4:6] for line in again.rows] == [("0.00", "–"), ("0.00", "1.00")]
