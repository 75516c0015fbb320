"""What infrastructure cost a job is told with its cause: from the attempt that failed to the line people read."""

from __future__ import annotations

from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_client.report import Line, summary_report
from benchflow_client.spending import account_of
from benchflow_client.summary import aggregate
from benchflow_workers.delivery import Answer
from tests.stations import station
from tests.worlds import make_world

LINE = "retried 1x after infrastructure failures (sandbox.start_failed 1; 1 of 1 trial recovered)"


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
