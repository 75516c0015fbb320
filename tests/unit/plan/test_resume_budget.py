"""Whether a job may go on whose ledger is lost: its documents say what it has spent and in what it differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import ResumeMismatchError, UsageError
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.plan.draft import find_work, make_draft
from benchflow_client.resume import EndedJob, check_caps, resumed_draft
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.summary import BudgetReport
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import Caps
from tests.worlds import make_world, write_task


def lost_job(folder: Path, outcome: str, *, report: BudgetReport | None = None, **caps: Any) -> EndedJob:
    """Return a job of four trials, three of which ran to this outcome, as only the store knows it."""
    plan = make_world(folder, tries=4, **caps).plan
    receipts = [Receipt(index, outcome, None, "", 1, 2.5, 0.5, 100, "a") for index in range(3)]
    return EndedJob(
        plan, receipts, frozenset(), is_recorded=False, has_summary=report is not None, budget=report
    )


@pytest.mark.parametrize(
    ("caps", "raised", "told"),
    [
        ({"max_trials": 3}, {"max_trials": 4}, "3 of 3 trials started"),
        ({"max_cost_usd": 1.5}, {"max_cost_usd": 2.0}, "$1.50 of $1.50 used"),
        ({"max_tokens": 250}, {"max_tokens": 400}, "300 of 250 tokens used"),
        ({"max_sandbox_seconds": 7}, {"max_sandbox_seconds": 60}, "7.5 s of 7 s used"),
    ],
)
def test_what_the_results_say_was_spent_counts_before_trials_run_again(
    tmp_path: Path, caps: dict[str, float], raised: dict[str, Any], told: str
) -> None:
    job = lost_job(tmp_path, "unscored", **caps)

    with pytest.raises(UsageError) as refused:
        check_caps(job, job.choose(), MemoryLedger(), None)
    check_caps(job, job.choose(), MemoryLedger(), Caps(**raised))

    assert told in refused.value.message


def test_a_summary_counts_attempts_that_left_no_result(tmp_path: Path) -> None:
    job = lost_job(tmp_path, "unscored", report=BudgetReport(cost_usd=9.0, trials=3), max_cost_usd=5.0)

    with pytest.raises(UsageError, match=r"\$9.00 of \$5.00 used"):
        check_caps(job, job.choose(), None, None)


def test_a_deadline_that_is_over_needs_another(tmp_path: Path) -> None:
    report = BudgetReport(trials=3, stopped=True, stopped_by="deadline_s")
    job = lost_job(tmp_path, "unscored", report=report, deadline_s=5.0)

    with pytest.raises(UsageError, match="its deadline is over"):
        check_caps(job, job.choose(), None, None)
    check_caps(job, job.choose(), None, Caps(deadline_s=60.0))


def test_trials_that_never_finished_are_left_to_the_ledgers_own_count(tmp_path: Path) -> None:
    job = lost_job(tmp_path, "passed", max_trials=3)

    check_caps(job, job.choose(), None, None)

    assert job.choose().again == [3]


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path: Path) -> None:
    for number in range(30):
        write_task(tmp_path / "tasks" / f"t{number:02}", files={"instruction.md": f"Do {number}.\n"})
    spec = JobSpec(tasks=str(tmp_path / "tasks"), agent=["nop"], sandbox="null")
    whole = make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="null")
    part = spec.model_copy(update={"limit": 5})
    draft = make_draft(find_work(part, cache_dir=tmp_path / "cache"), sandbox="null")

    with pytest.raises(ResumeMismatchError) as refused:
        resumed_draft(draft, EndedJob(whole.plan, [], frozenset(), is_recorded=False, has_summary=False))

    assert len(refused.value.problems) == 21
    assert refused.value.problems[-1] == "and 5 more"
