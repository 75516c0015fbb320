"""What people read and give where a job has caps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import Budget, Cause, Spent
from benchflow_client.ledger.base import JobHeader, JobProgress, JobState
from benchflow_client.limits import check_bucket
from benchflow_client.report import Line, summary_report
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import (
    Caps,
    account_of,
    budget_report,
    cause_text,
    raised_budget,
    stop_text,
)
from benchflow_client.summary import aggregate
from tests.worlds import make_world

SPENT = Spent(cost_usd=2.104, tokens=12_345, sandbox_s=10.06, trials=4, unknown_cost=3, unknown_tokens=1)


def progress(*, cause: str = "", code: str = "", **budget: Any) -> JobProgress:
    header = JobHeader(
        job="cap", total=20, concurrency=4, max_attempts=3, owner="ana", queue="null", group_id="g",
        body_id="b", title="t", created_at=0.0, breaker=5, budget=Budget(**budget),
    )  # fmt: skip
    return JobProgress(
        header=header, state=JobState.CLOSED, outcomes={}, running=0, waiting=0, released=0, reward_sum=0.0,
        retried=0, cancelled_by="", cancel_reason="", first_started_at=0.0, last_finished_at=0.0, spent=SPENT,
        stop_cause=cause, stop_code=code,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "budget", "text", "key"),
    [
        (Cause.COST, {"cost_usd": 2.0}, "$2.10 of $2.00 used", "max_cost_usd"),
        (Cause.TOKENS, {"tokens": 12_000}, "12,345 of 12,000 tokens used", "max_tokens"),
        (Cause.SANDBOX, {"sandbox_s": 10.0}, "10.1 s of 10 s used", "max_sandbox_seconds"),
        (Cause.TRIALS, {"trials": 4}, "4 of 4 trials started", "max_trials"),
        (Cause.DEADLINE, {"deadline_s": 90.0}, "90 s are over", "deadline_s"),
    ],
)
def test_a_stopped_job_says_what_is_used_and_names_the_cap(
    cause: str, budget: dict[str, float], text: str, key: str
) -> None:
    report = budget_report(progress(cause=cause, **budget))

    assert (report.stopped, report.reason, report.stopped_by) == (True, text, key)
    assert report.caps == {key: next(iter(budget.values()))}


def test_failures_in_a_row_stop_a_job_without_a_cap() -> None:
    report = budget_report(progress(cause="failures", code="agent.env_missing"))

    assert report.reason == "5 trials in a row ended alike: agent variable not set"
    assert (report.stopped, report.stopped_by) == (True, "")


def test_a_failure_of_a_newer_worker_is_named_by_its_code() -> None:
    assert stop_text(progress(cause="failures", code="agent.new")).endswith("ended alike: agent.new")


def test_a_job_that_ran_to_its_end_has_no_reason_and_shows_what_it_spent() -> None:
    report = budget_report(progress(cost_usd=5.0))

    assert (report.stopped, report.reason, report.stopped_by) == (False, "", "")
    assert (report.cost_usd, report.tokens, report.sandbox_seconds, report.trials) == (
        2.104,
        12_345,
        10.06,
        4,
    )
    assert (report.usd_unknown_attempts, report.tokens_unknown_attempts) == (3, 1)


def test_a_larger_cap_replaces_its_own_and_leaves_the_others() -> None:
    budget = raised_budget(progress(cost_usd=2.0, tokens=20_000), Caps(max_cost_usd=3.0))

    assert (budget.cost_usd, budget.tokens, budget.deadline_s) == (3.0, 20_000, None)


@pytest.mark.parametrize(
    ("budget", "caps", "message", "hint"),
    [
        ({"cost_usd": 2.0}, Caps(), r"'cap': \$2.10 of \$2.00 used", "--max-cost-usd"),
        ({"tokens": 9}, Caps(max_cost_usd=9.0), "12,345 of 9 tokens used", "--max-tokens"),
        ({}, Caps(max_sandbox_seconds=2.0), "10.1 s of 2 s used", "--max-sandbox-seconds"),
        ({"trials": 9}, Caps(max_trials=4), "4 of 4 trials started", "--max-trials"),
    ],
)
def test_a_budget_with_which_nothing_could_start_is_refused(
    budget: dict[str, float], caps: Caps, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        raised_budget(progress(**budget), caps)

    assert caught.value.hint == f"Give a larger {hint}."


def test_a_deadline_counts_anew_and_one_that_is_over_has_to_be_given_again() -> None:
    late = progress(cause=Cause.DEADLINE, deadline_s=90.0)

    with pytest.raises(UsageError, match="its deadline is over"):
        raised_budget(late, Caps(max_trials=9))
    assert raised_budget(late, Caps(deadline_s=60.0)).deadline_s == 60.0


@pytest.mark.parametrize("cap", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_cost_usd", "max_sandbox_seconds", "deadline_s"])
def test_a_cap_that_lets_nothing_start_is_refused(name: str, cap: float) -> None:
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} = {cap} lets nothing start"):
        Caps(**{name: cap})


def test_what_trials_wait_for_is_named_as_the_flag_that_sets_it() -> None:
    causes = (Cause.COST, Cause.SANDBOX, Cause.DEADLINE, Cause.SLOTS, "limit sandbox:docker")

    assert [cause_text(cause) for cause in causes] == [
        "max-cost-usd",
        "max-sandbox-seconds",
        "deadline-s",
        "slots",
        "limit sandbox:docker",
    ]


@pytest.mark.parametrize(
    "bucket", ["sandbox:null", "provider:openai", "model:openai/gpt-5", "model:a:b", "key:OPENAI_API_KEY"]
)
def test_buckets_are_sandbox_kinds_providers_models_and_keys(bucket: str) -> None:
    check_bucket(bucket)


@pytest.mark.parametrize("value", ["sk-" + "proj-0123456789", "AIza" + "Sy0123456789", "my key"])
def test_a_key_in_the_place_of_its_variable_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(UsageError, match="no name of a variable") as caught:
        check_bucket(f"key:{value}")

    assert value not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("bucket", "message", "hint"),
    [
        ("", "No bucket is named", "sandbox:KIND"),
        ("docker", "'docker' is no bucket", "sandbox:KIND"),
        ("model:", "'model:' is no bucket", "model:NAME"),
        ("model: gpt", "'model: gpt' is no bucket", "model:NAME"),
        ("sandbox:dokcer", "no such kind of sandbox", "Did you mean sandbox:docker?"),
        ("sandbox:auto", "no such kind of sandbox", "Kinds: docker, local, null"),
    ],
)
def test_a_bucket_under_which_nothing_is_counted_is_refused(bucket: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_bucket(bucket)

    assert hint in caught.value.hint


def test_notes_of_a_stopped_job_name_the_flag_and_what_could_not_be_counted(tmp_path: Path) -> None:
    plan = make_world(tmp_path, tries=2).plan
    receipts = [
        Receipt(0, "passed", 1.0, "", 1, 1.0, None, None, "x"),
        Receipt(1, "not_started", None, "", 0, 0.0, None, None, ""),
    ]
    stopped = progress(cause=Cause.SANDBOX, sandbox_s=10.0, cost_usd=9.0, tokens=99_000)

    report = summary_report(aggregate(plan, receipts, elapsed_s=1.0, account=account_of(stopped)))

    notes = [block.text for block in report if isinstance(block, Line)]
    job = plan.job
    assert notes[:3] == [
        f"stopped: 10.1 s of 10 s used · go on: bench resume {job} --max-sandbox-seconds N",
        "3 attempts told no cost, so --max-cost-usd could not count them.",
        "1 attempt told no tokens, so --max-tokens could not count them.",
    ]


def test_a_job_that_failures_stopped_goes_on_without_a_flag(tmp_path: Path) -> None:
    plan = make_world(tmp_path).plan
    receipts = [Receipt(0, "not_started", None, "", 0, 0.0, None, None, "")]
    stopped = progress(cause="failures", code="agent.env_missing")

    report = summary_report(aggregate(plan, receipts, elapsed_s=1.0, account=account_of(stopped)))

    texts = [block.text for block in report if isinstance(block, Line)]
    assert texts[0] == (
        f"stopped: 5 trials in a row ended alike: agent variable not set · go on: bench resume {plan.job}"
    )
