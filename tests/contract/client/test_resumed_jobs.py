"""Going on with a job: the same trials only, nothing finished is run again, nothing is deleted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client import Client, JobSpec
from benchflow_client.errors import JobNotFoundError, ResumeMismatchError, UsageError
from benchflow_client.ledger.base import JobState
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import Caps
from tests.waiting import until

Bench = Callable[..., Any]
NULL = ("--agent", "nop", "--sandbox", "null")
SLOW = ("--agent", "./slow.sh", "--sandbox", "null")


def spec(tasks: Path, **fields: Any) -> JobSpec:
    return JobSpec.model_validate({"tasks": str(tasks), "agent": "nop", "sandbox": "null", **fields})


def closed(configured: Any, name: str) -> None:
    until(lambda: configured.ledger.progress(name).state is JobState.CLOSED)


def receipts(configured: Any, name: str) -> dict[int, Receipt]:
    return {receipt.trial_index: receipt for receipt in configured.ledger.receipts(name)}


def cancelled_job(bench: Bench, configured: Any, tasks: Path, name: str) -> dict[int, Receipt]:
    """Run a job whose trials take time, and cancel it when some have ended; returns what it came to."""
    bench("submit", tasks, *SLOW, "--tries", "20", "--job-name", name)
    until(lambda: configured.ledger.progress(name).finished > 2)
    bench("cancel", name)
    closed(configured, name)
    return receipts(configured, name)


def test_what_was_cancelled_runs_and_what_had_ended_is_not_run_again(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    before = cancelled_job(bench, configured, tasks, "stopped")
    cancelled = sum(receipt.outcome == "cancelled" for receipt in before.values())
    assert 0 < cancelled < 40

    done = bench("resume", "stopped", "--retry", "cancelled")

    assert (done.code, f"{40 - cancelled} finished trials kept, {cancelled} to run" in done.err) == (0, True)
    assert "bench watch stopped" in done.err
    closed(configured, "stopped")
    after = receipts(configured, "stopped")
    assert {receipt.outcome for receipt in after.values()} == {"unscored"}
    assert [after[i] for i in before if before[i].outcome == "unscored"] == [
        receipt for receipt in before.values() if receipt.outcome == "unscored"
    ]


def test_a_cancelled_trial_has_a_row_of_its_own_without_a_number(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    before = cancelled_job(bench, configured, tasks, "rows")

    listed = list(csv.DictReader(io.StringIO(bench("results", "rows", "--csv").out)))
    stored = (configured.store / "rows/results.jsonl").read_text().splitlines()

    waiting = sorted(index for index, receipt in before.items() if not receipt.folder)
    assert (len(listed), len(stored), len(waiting) > 0) == (40, 40, True)
    for index in waiting:
        row = next(row for row in listed if row["index"] == str(index))
        assert (row["outcome"], row["reward"], row["code"], row["folder"]) == ("cancelled", "", "", "")
        assert (row["trial"].partition(".")[0], row["attempt"], row["agent"]) == ("rows", "0", "slow")
        document = json.loads(stored[index])
        assert (document["index"], document["outcome"], document["reward"]) == (index, "cancelled", None)


def test_a_resumed_run_says_per_trial_what_becomes_of_it_and_at_the_end_what_ran(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "again")

    done = bench("run", f"{tasks}/", *NULL, "--resume", "again", "--max-attempts", "9")

    assert "resume  again: 0 finished trials kept, 2 to run" in done.err
    assert " run  one  nop    unscored" in done.err
    assert "max_attempts stays 3: the fleet has it on record with the job" in done.err
    assert done.err.endswith("Resumed job again: 0 finished trials reused, 2 ran now\n")


def test_a_dry_run_shows_what_would_be_reused_and_changes_nothing(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "dry")
    before = receipts(configured, "dry")

    human = bench("run", tasks, *NULL, "--resume", "dr", "--dry-run")
    data = json.loads(bench("submit", tasks, *NULL, "--resume", "dry", "--dry-run", "--json").out)

    assert (human.code, "0 finished trials kept, 2 to run" in human.err) == (0, True)
    assert (data["job"], data["resume"]["kept"], data["resume"]["to_run"]) == ("dry", 0, 2)
    assert data["resume"]["trials"][0] == {
        "trial": "dry.one.nop.1",
        "index": 0,
        "runs": True,
        "outcome": "unscored",
        "reason": "unscored",
    }
    assert receipts(configured, "dry") == before


def test_another_job_is_refused_with_every_key_that_differs(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "differs")
    before = {path: path.read_bytes() for path in configured.store.glob("differs/**/*") if path.is_file()}
    (tasks / "two/instruction.md").write_text("Do something else.\n")

    done = bench("run", tasks, *NULL, "--tries", "2", "--resume", "differs")

    assert (done.code, done.out) == (1, "")
    assert "Job 'differs' cannot be resumed" in done.err
    assert "tries: 1 -> 2" in done.err
    assert "task two: " in done.err
    assert "task one" not in done.err
    assert "--fresh" in done.err
    assert {
        path: path.read_bytes() for path in configured.store.glob("differs/**/*") if path.is_file()
    } == before


def test_fresh_runs_a_job_of_that_name_under_another_and_keeps_the_first(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "mine")

    taken = bench("submit", tasks, *NULL, "--job-name", "mine")
    fresh = bench("submit", tasks, *NULL, "--job-name", "mine", "--tries", "2", "--resume", "mine", "--fresh")
    free = bench("submit", tasks, *NULL, "--job-name", "quite-new", "--fresh")

    assert (taken.code, "--resume mine" in taken.err, "--fresh" in taken.err) == (2, True, True)
    name = fresh.out.strip()
    assert (name[:5], len(name), free.out) == ("mine-", 9, "quite-new\n")
    closed(configured, name)
    assert configured.ledger.progress(name).header.total == 4
    assert configured.ledger.progress("mine").header.total == 2


def test_a_job_that_runs_or_is_paused_is_not_resumed_by_a_run(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("submit", tasks, *SLOW, "--tries", "100", "--job-name", "busy")

    running = bench("run", tasks, *SLOW, "--tries", "100", "--resume", "busy")
    again = bench("resume", "busy")
    bench("pause", "busy")
    paused = bench("run", tasks, *SLOW, "--tries", "100", "--resume", "busy", "--dry-run")
    resumed = bench("resume", "busy")

    assert (running.code, "bench watch busy" in running.err) == (2, True)
    assert (again.code, "bench watch busy" in again.err) == (2, True)
    assert (paused.code, "bench resume busy" in paused.err) == (2, True)
    assert (resumed.code, "busy goes on" in resumed.err) == (0, True)
    bench("cancel", "busy")
    closed(configured, "busy")


def test_a_job_that_the_ledger_forgot_goes_on_from_the_store_with_other_pace(
    tasks: Path, configured: Any
) -> None:
    with Client() as client:
        name = client.run(spec(tasks, tries=3)).plan.job
        before = set((configured.store / name).glob("*/result.json"))
        configured.ledger.forget_job(name)

        found = client.run(spec(tasks, tries=3, concurrency=2, max_attempts=1, max_trials=50), resume=name)

    assert found.summary is not None
    assert (found.summary.planned, found.summary.unscored) == (6, 6)
    header = configured.ledger.header(name)
    assert (header.concurrency, header.max_attempts, header.budget.trials) == (2, 1, 50)
    assert before < set((configured.store / name).glob("*/result.json"))


def test_a_closed_job_that_the_ledger_forgot_is_on_record_again_when_nothing_has_to_run(
    tasks: Path, configured: Any
) -> None:
    with Client() as client:
        name = client.run(spec(tasks)).plan.job
        before = receipts(configured, name)
        configured.ledger.forget_job(name)

        handle = client.recover(name)

        assert handle.progress().state is JobState.CLOSED
        assert receipts(configured, name) == before
        assert client.recover(name).name == name


def test_a_cap_that_is_used_up_already_is_refused_and_a_higher_one_counts(
    tasks: Path, configured: Any
) -> None:
    with Client() as client:
        name = client.run(spec(tasks, max_trials=1)).plan.job
        outcomes = sorted(receipt.outcome for receipt in receipts(configured, name).values())
        assert outcomes == ["not_started", "unscored"]

        with pytest.raises(UsageError, match="Nothing may start"):
            client.submit(spec(tasks, max_trials=1), resume=name)
        with pytest.raises(UsageError, match="Nothing may start"):
            client.resume(name)
        handle = client.resume(name, ("not_started",), caps=Caps(max_trials=2))

        assert handle is not None
        assert handle.wait(timeout_s=60).unscored == 2
        assert client.resume(name, ("cancelled",)) is None


def test_the_caller_sees_what_is_kept_before_anything_runs(tasks: Path, configured: Any) -> None:
    seen: list[tuple[str, list[int], bool]] = []
    with Client() as client:
        name = client.run(spec(tasks)).plan.job

        handle = client.submit(
            spec(tasks),
            resume=name,
            on_draft=lambda draft, fleet: seen.append((
                draft.plan.job,
                draft.resume.again if draft.resume else [],
                bool(receipts(configured, name)),
            )),
        )

        assert handle.name == name
        handle.wait(timeout_s=60)
    assert seen == [(name, [0, 1], True)]


def test_another_job_is_refused_in_python_by_type(tasks: Path, configured: Any) -> None:
    with Client() as client:
        name = client.run(spec(tasks)).plan.job

        with pytest.raises(ResumeMismatchError) as caught:
            client.draft(spec(tasks, timeout_multiplier=2), resume=name)
        with pytest.raises(JobNotFoundError):
            client.submit(spec(tasks), resume="nothing-here")

    assert caught.value.problems == ("timeout_multiplier: 1.0 -> 2.0",)
    assert caught.value.exit_code == 1


def test_nothing_to_run_is_told_and_a_forgotten_job_is_taken_up_by_a_command(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "whole")
    before = receipts(configured, "whole")

    nothing = bench("resume", "whole", "--retry", "cancelled")
    configured.ledger.forget_job("whole")
    recovered = bench("recover", "whole")

    assert (nothing.code, "whole: nothing to run again" in nothing.err) == (0, True)
    assert (
        "kept without a verdict; to run it all the same: bench resume whole --retry unscored" in nothing.err
    )
    assert (recovered.code, "whole is on the fleet" in recovered.err) == (0, True)
    assert receipts(configured, "whole") == before


def test_a_long_list_of_trials_is_cut_and_says_where_all_are(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "many", "--tries", "15")

    shown = bench("run", tasks, *NULL, "--tries", "15", "--resume", "many", "--dry-run")

    assert shown.err.count(" run  ") == 20
    assert "10 more trials: bench results many --trials" in shown.err
    assert bench("results", "many", "--trials").code == 0
    assert "try 2" in shown.err
