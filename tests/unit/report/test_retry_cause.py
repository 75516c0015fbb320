"""What infrastructure cost a job is told with its cause: from the attempt that failed to the line people read."""

from __future__ import annotations

from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_client.report import Line, summary_report
from benchflow_client.schema.summary import BudgetReport, Retries
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import account_of
from benchflow_client.summary import Account, aggregate
from benchflow_workers.delivery import Answer
from tests.stations import station
from tests.worlds import make_world

LINE = "retried 1x after infrastructure failures (sandbox.start_failed 1; of 1 trial 1 reached a verdict)"


def test_an_attempt_that_was_repeated_is_told_with_its_cause(tmp_path: Path) -> None:
    world = make_world(tmp_path, max_attempts=3)
    world.sandboxes.open_error = SandboxError("sandbox.start_failed", "The daemon is gone.")
    with station(world) as here:
        assert here.take() is Answer.IGNORED
        world.sandboxes.open_error = None
        here.skip(120)
        here.dispatcher.release(here.header, world.plan)
        receipt = here.take()
        account = account_of(here.memory.progress(here.job))

    summary = aggregate(world.plan, [receipt], elapsed_s=1.0, account=account)

    assert (receipt.outcome, receipt.attempts) == ("passed", 2)
    assert summary.retries.causes == {"sandbox.start_failed": 1}
    assert LINE in [block.text for block in summary_report(summary) if isinstance(block, Line)]


def test_trials_that_ended_without_a_score_are_not_told_as_lost(tmp_path: Path) -> None:
    plan = make_world(tmp_path, tries=4).plan
    receipts = [
        Receipt(0, "passed", 1.0, "", 2, 1.0, None, None, "a"),
        Receipt(1, "unscored", None, "", 2, 1.0, None, None, "b"),
        Receipt(2, "unscored", None, "", 3, 1.0, None, None, "c"),
        Receipt(3, "errored", None, "worker.lost", 3, 1.0, None, None, "d"),
    ]
    account = Account(BudgetReport(), {"worker.lost": 6})

    summary = aggregate(plan, receipts, elapsed_s=1.0, account=account)

    told = [block.text for block in summary_report(summary) if isinstance(block, Line)]
    assert told[0] == (
        "retried 6x after infrastructure failures (worker.lost 6; of 4 trials "
        "1 reached a verdict, 2 ended without a score, 1 failed again)"
    )


def test_an_execution_whose_trial_has_not_ended_yet_is_told_so(tmp_path: Path) -> None:
    plan = make_world(tmp_path).plan
    retries = Retries(attempts=1, causes={"worker.lost": 1})
    summary = aggregate(plan, [], elapsed_s=1.0).model_copy(update={"retries": retries})

    told = [block.text for block in summary_report(summary) if isinstance(block, Line)]
    assert "retried 1x after infrastructure failures (worker.lost 1; none ended yet)" in told
