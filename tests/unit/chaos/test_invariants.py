"""What must hold after faults, and that each broken promise is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.chaos.evidence import Observer
from benchflow_client.chaos.invariants import Evidence, check, unfinished
from benchflow_client.chaos.records import ChaosReport, Injection
from benchflow_client.chaos.table import chaos_report
from benchflow_client.dispatch import job_header
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.report import Line, Table
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import account_of
from benchflow_client.summary import aggregate
from benchflow_workers.trial.recorder import result_of
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.redact import Redactor
from tests.worlds import make_world

NAMES = (
    "receipts", "results", "buckets", "gathered once", "summary", "verdicts", "messages", "sandboxes", "mounts",
    "secrets",
)  # fmt: skip


@pytest.fixture
def sound(tmp_path: Path) -> Evidence:
    """What a job of three passed trials leaves when nothing went wrong."""
    world = make_world(tmp_path, tries=3)
    plan, ledger = world.plan, MemoryLedger()
    ledger.open_job(job_header(plan, owner="ana"))
    results = [result_of(world.attempt(i), Rollout(rewards={"reward": 1.0}), Redactor()) for i in range(3)]
    receipts = [Receipt.of(result) for result in results]
    for receipt in receipts:
        claim = ledger.claim(plan.job, receipt.trial_index, owner="w", ttl_s=30, max_attempts=3)
        ledger.commit(plan.job, receipt, fence=claim.fence)
    ledger.close_job(plan.job)
    progress = ledger.progress(plan.job)
    return Evidence(
        plan=plan,
        progress=progress,
        receipts=receipts,
        trials=[PublishedTrial(receipt, result) for receipt, result in zip(receipts, results, strict=True)],
        summary=aggregate(plan, receipts, elapsed_s=2.0, account=account_of(progress)),
        rows=receipts,
        summaries=(b"{}", b"{}"),
        observed=(),
        account=account_of(progress),
        reward=1.0,
        messages=(),
        sandboxes=(),
        mounts=(),
        secrets=(),
    )


def broken(evidence: Evidence) -> dict[str, str]:
    return {found.name: found.text for found in check(evidence) if found.holds is False}


def with_trial(evidence: Evidence, index: int, **changes: Any) -> Evidence:
    """Return the evidence with another receipt for a trial, in the ledger's hands only."""
    trials = list(evidence.trials)
    trials[index] = replace(trials[index], **changes)
    return replace(evidence, trials=trials, receipts=[trial.receipt for trial in trials])


def test_all_holds_of_a_job_that_nothing_happened_to(sound: Evidence) -> None:
    found = check(sound)

    assert [(each.name, each.holds) for each in found] == [(name, True) for name in NAMES]


def test_what_nobody_could_look_at_neither_holds_nor_breaks(sound: Evidence) -> None:
    found = check(replace(sound, sandboxes=None, secrets=None))

    assert {each.name for each in found if each.holds is None} == {"sandboxes", "secrets"}


def test_trial_without_a_receipt_is_missed(sound: Evidence) -> None:
    found = broken(replace(sound, receipts=sound.receipts[1:]))

    assert found["receipts"] == "trial 0 has 0 receipts"
    assert found["buckets"].startswith("the ledger counts {'passed': 3}")


def test_trial_counted_twice_is_seen(sound: Evidence) -> None:
    found = broken(replace(sound, receipts=[*sound.receipts, sound.receipts[0]]))

    assert found["receipts"] == "trial 0 has 2 receipts"
    assert "is published 2 times" in found["results"]


def test_receipt_of_a_trial_that_was_never_planned_is_seen(sound: Evidence) -> None:
    stranger = sound.receipts[0]._replace(trial_index=9, folder="other")

    assert (
        broken(replace(sound, receipts=[*sound.receipts, stranger]))["receipts"]
        == "trial 9 was never planned"
    )


def test_receipt_that_says_something_else_than_its_result_is_seen(sound: Evidence) -> None:
    receipt = sound.receipts[1]._replace(wall_s=99.0)

    assert "trial 1 has another receipt" in broken(with_trial(sound, 1, receipt=receipt))["results"]


def test_result_of_another_trial_is_seen(sound: Evidence) -> None:
    found = broken(with_trial(sound, 1, result=sound.trials[0].result))

    assert found["results"] == f"trial 1 has the result of {sound.plan.trial(0).id}"


def test_passed_trial_without_a_document_is_seen_and_an_errored_one_may_have_none(sound: Evidence) -> None:
    passed = with_trial(sound, 2, result=None)
    errored = with_trial(
        sound, 2, result=None, receipt=sound.receipts[2]._replace(outcome="errored", reward=None)
    )

    assert broken(passed)["results"] == "trial 2 is passed and has no result.json"
    assert "results" not in broken(errored)


def test_counts_that_did_not_add_up_once_are_remembered(sound: Evidence) -> None:
    assert broken(replace(sound, observed=("1 ended, 1 run, 0 wait, of 3",))) == {
        "buckets": "1 ended, 1 run, 0 wait, of 3"
    }


def test_unfinished_trials_are_counted(sound: Evidence) -> None:
    progress = replace(sound.progress, outcomes={"passed": 2}, state=JobState.OPEN)

    found = broken(replace(sound, progress=progress))

    assert "2 of 3 trials are finished" in found["buckets"]
    assert found["gathered once"] == "the job is open"


def test_summary_that_changes_when_it_is_asked_for_again_is_seen(sound: Evidence) -> None:
    found = broken(replace(sound, summaries=(b"{}", b"{ }"), rows=()))

    assert found["gathered once"] == (
        "summary.json changed when it was asked for again; results.jsonl holds other receipts than the ledger"
    )


def test_summary_that_is_no_recount_of_the_store_is_seen(sound: Evidence) -> None:
    failed = result_of_failed(sound)

    found = broken(with_trial(sound, 0, result=failed, receipt=Receipt.of(failed)))

    assert "passed is 3 and counts 2" in found["summary"]
    assert found["verdicts"] == "trial 0 has reward 0.0, earned was 1.0"


def result_of_failed(sound: Evidence) -> Any:
    result = sound.trials[0].result
    assert result is not None
    return result.model_copy(update={"outcome": "failed", "rewards": {"reward": 0.0}}).model_validate({
        **result.model_dump(),
        "outcome": "failed",
        "rewards": {"reward": 0.0},
    })


@pytest.mark.parametrize(
    ("outcome", "reward", "code", "text"),
    [
        ("errored", 1.0, "worker.lost", "trial 0 is errored with reward 1.0"),
        ("errored", None, "agent.failed", "trial 0 is errored (agent.failed)"),
        ("errored", None, "", "trial 0 is errored (no failure)"),
        ("not_started", None, "", "trial 0 is not_started (no failure)"),
        ("unscored", None, "", "trial 0 is unscored (no failure)"),
        ("errored", None, "worker.lost", None),
        ("cancelled", None, "", None),
    ],
)
def test_trial_is_without_a_verdict_only_where_a_fault_took_it(
    sound: Evidence, outcome: str, reward: float | None, code: str, text: str | None
) -> None:
    receipt = sound.receipts[0]._replace(outcome=outcome, reward=reward, code=code)

    assert broken(replace(sound, receipts=[receipt, *sound.receipts[1:]])).get("verdicts") == text


def test_sandboxes_that_score_nothing_leave_trials_unscored(sound: Evidence) -> None:
    receipts = [receipt._replace(outcome="unscored", reward=None) for receipt in sound.receipts]

    assert "verdicts" not in broken(replace(sound, receipts=receipts, reward=None))


@pytest.mark.parametrize("name", ["messages", "sandboxes", "mounts", "secrets"])
def test_leftovers_are_named_the_first_five_of_them(sound: Evidence, name: str) -> None:
    places = tuple(f"place {number}" for number in range(7))

    found = broken(replace(sound, **{name: places}))  # type: ignore[arg-type]

    assert found == {name: "place 0; place 1; place 2; place 3; place 4 and 2 more"}


def test_job_that_does_not_end_is_one_broken_promise(sound: Evidence) -> None:
    found = unfinished(replace(sound.progress, outcomes={"passed": 1}, running=2), waited_s=61.4)

    assert (found.name, found.holds) == ("ends", False)
    assert found.text.startswith("1 of 3 trials ended, 2 run, 0 are released")


@pytest.fixture
def reported(sound: Evidence) -> Callable[[Evidence], ChaosReport]:
    def report(evidence: Evidence) -> ChaosReport:
        return ChaosReport(
            job="calm-otter", seed=7, sandbox="local", trials=3, started_at=utc_now(), took_s=12.3,
            outcomes={"passed": 3}, retried=1,
            injections=(
                Injection(at_s=1.0, fault="paused", text="for 0.1 s"),
                Injection(at_s=2.5, fault="paused", text="for 0.2 s"),
            ),
            invariants=check(evidence),
        )  # fmt: skip

    return report


def test_report_of_a_sound_run_says_what_was_done_and_seen(
    sound: Evidence, reported: Callable[[Evidence], ChaosReport]
) -> None:
    report = reported(replace(sound, secrets=None))

    faults, _, held, _, numbers, verdict = chaos_report(report)

    assert report.is_sound
    assert isinstance(faults, Table)
    assert [row.cells for row in faults.rows] == [("paused", "2", "2.5", "for 0.2 s")]
    assert isinstance(held, Table)
    assert held.rows[0].cells == ("receipts", "holds", "3 receipts for 3 trials")
    assert held.rows[-1].cells == ("secrets", "not seen", "not looked at")
    assert isinstance(numbers, Line)
    assert numbers.text == "3 trials (3 passed), 1 executed again, 12 s, seed 7"
    assert isinstance(verdict, Line)
    assert verdict.tone == "good"


def test_report_names_faults_that_never_came_and_proves_nothing_without_those_that_were_asked_for(
    sound: Evidence, reported: Callable[[Evidence], ChaosReport]
) -> None:
    report = reported(sound).model_copy(
        update={"planned": ("worker killed", "paused"), "missed": ("--worker-pid 71",)}
    )

    faults, *_, verdict = chaos_report(report)

    assert report.is_sound
    assert not report.is_proven
    assert isinstance(faults, Table)
    assert [row.cells[:2] for row in faults.rows] == [("paused", "2"), ("worker killed", "0")]
    assert isinstance(verdict, Line)
    assert verdict.tone == "bad"
    assert verdict.text.startswith("not proven: --worker-pid 71 did not come")


def test_report_of_a_broken_run_names_what_broke(
    sound: Evidence, reported: Callable[[Evidence], ChaosReport]
) -> None:
    report = reported(replace(sound, mounts=("/a",), messages=("m (in 'null')",)))

    *_, held, _, _, verdict = chaos_report(report)

    assert not report.is_sound
    assert isinstance(held, Table)
    assert [row.notes for row in held.rows if row.tone == "bad"] == [("m (in 'null')",), ("/a",)]
    assert verdict == Line("broken: messages, mounts", label="chaos", tone="bad")


class Readings:
    """A job whose counts are read one after the other; None = the ledger does not answer."""

    def __init__(self, *progress: Any) -> None:
        self._left = list(progress)

    def progress(self) -> Any:
        if (found := self._left.pop(0)) is None:
            raise BrokerError("The broker does not answer.")
        return found


def observed(*progress: Any) -> Observer:
    handle: Any = Readings(*progress)
    observer = Observer(handle)
    for _ in progress:
        observer.look()
    return observer


def test_counts_that_add_up_are_no_problem_and_silence_is_no_count(sound: Evidence) -> None:
    observer = observed(sound.progress, None, sound.progress)

    assert (observer.looks, observer.problems) == (2, [])


def test_counts_that_do_not_add_up_go_back_or_are_released_from_nowhere_are_noted(sound: Evidence) -> None:
    twice = replace(sound.progress, running=1, waiting=-1)
    fewer = replace(sound.progress, outcomes={"passed": 2}, waiting=1)
    nowhere = replace(sound.progress, released=2)

    assert observed(twice).problems[0] == "3 ended, 1 run, -1 wait, of 3"
    assert observed(sound.progress, fewer).problems == ["3 had ended, then 2"]
    assert observed(nowhere).problems == ["2 released, but only 0 wait"]
