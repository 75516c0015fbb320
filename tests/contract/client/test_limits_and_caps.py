"""`bench limits`, `bench cancel TRIAL`, caps of `bench resume`, and what a stopped job tells, on a real fleet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.rates import ModelCall
from benchflow_client.ledger.redis_rates import RedisRates
from tests.waiting import until

Bench = Callable[..., Any]
NULL = ("--agent", "nop", "--sandbox", "null")
SLOW = ("--agent", "./slow.sh", "--sandbox", "null")


def words(text: str) -> str:
    """Return a text in one line with single spaces."""
    return " ".join(text.split())


@pytest.fixture
def unlimited(configured: Any) -> Iterator[Any]:
    """The fleet, without limits before and afterwards."""
    yield configured
    for bucket in configured.ledger.limits():
        configured.ledger.set_limit(bucket, None)
    RedisConnection.at(configured.url).client.delete("bf:closed")


def test_limits_are_set_shown_and_cleared(bench: Bench, unlimited: Any) -> None:
    none = bench("limits")
    first = bench("limits", "set", "sandbox:null", "--live", "3")
    rates = ("--requests-per-min", "60", "--starts-per-s", "0.5", "--tokens-per-min", "1e6")
    second = bench("limits", "set", "model:openai/gpt-5", *rates)

    assert (none.code, none.err) == (0, "no limits · set one: bench limits set sandbox:docker --live 8\n")
    assert first.code == second.code == 0
    assert [line.split() for line in second.err.splitlines()] == [
        ["bucket", "in", "flight", "starts/s", "requests/min", "tokens/min"],
        ["model:openai/gpt-5", "0", "0.5", "0", "of", "60", "0", "of", "1,000,000"],
        ["sandbox:null", "0", "of", "3", "–", "–", "–"],
    ]
    assert len(bench("limits", "list", "sandbox:null").err.splitlines()) == 2
    assert words(bench("limits", "list", "sandbox:docker").err).startswith("no limit for sandbox:docker ·")
    cleared = bench("limits", "clear", "sandbox:null", "--json")
    assert json.loads(cleared.out) == [
        {
            "bucket": "model:openai/gpt-5",
            "live": None,
            "in_flight": 0,
            "starts_per_s": 0.5,
            "requests_per_min": 60.0,
            "tokens_per_min": 1e6,
            "requests_last_min": 0,
            "tokens_last_min": 0,
        }
    ]


def test_calls_of_the_last_minute_and_providers_that_asked_to_wait_are_shown(
    bench: Bench, unlimited: Any
) -> None:
    rates = RedisRates(RedisConnection.at(unlimited.url))
    bench("limits", "set", "key:OPENAI_API_KEY", "--requests-per-min", "60", "--tokens-per-min", "90000")
    rates.take(ModelCall(("key:OPENAI_API_KEY",), "openai", 1_500), within_s=0)
    rates.close("openai OPENAI_API_KEY", 40.0)

    shown, record = bench("limits").err.splitlines(), json.loads(bench("limits", "--json").out)

    assert shown[1].split() == ["key:OPENAI_API_KEY", "–", "–", "1", "of", "60", "1,500", "of", "90,000"]
    assert words(shown[2]).startswith("closed openai OPENAI_API_KEY: calls wait ")
    assert (record[0]["in_flight"], record[0]["requests_last_min"], record[0]["tokens_last_min"]) == (
        None,
        1,
        1_500,
    )


@pytest.mark.parametrize(
    ("bucket", "flags", "says"),
    [
        ("key:OPENAI_API_KEY", ("--live", "3"), "counts calls of models, not trials"),
        ("sandbox:null", ("--tokens-per-min", "10"), "counts trials, not calls of models"),
    ],
)
def test_a_limit_of_what_a_bucket_does_not_count_is_refused(
    bench: Bench, unlimited: Any, bucket: str, flags: tuple[str, str], says: str
) -> None:
    refused = bench("limits", "set", bucket, *flags)

    assert (refused.code, says in words(refused.err)) == (2, True)
    assert unlimited.ledger.limits() == {}


def test_a_limit_replaces_the_one_before_and_clearing_twice_is_harmless(bench: Bench, unlimited: Any) -> None:
    bench("limits", "set", "sandbox:null", "--live", "3", "--starts-per-s", "2")

    bench("limits", "set", "sandbox:null", "--live", "5")

    assert unlimited.ledger.limits()["sandbox:null"].starts_per_s is None
    assert bench("limits", "clear", "sandbox:null").code == 0
    assert bench("limits", "clear", "sandbox:null").code == 0


def test_a_job_that_a_limit_holds_says_so_and_starts_when_it_is_gone(
    bench: Bench, tasks: Path, unlimited: Any
) -> None:
    bench("limits", "set", "sandbox:null", "--live", "0")
    assert bench("submit", tasks, *NULL, "--job-name", "held").code == 0

    rows = {row["job"]: row for row in json.loads(bench("jobs", "--json").out)}
    shown = bench("jobs").err

    assert rows["held"]["waiting_for"] == "limit sandbox:null"
    assert "limit sandbox:null" in shown
    bench("limits", "clear", "sandbox:null")
    assert bench("watch", "held").code == 1
    assert unlimited.ledger.progress("held").outcomes["unscored"] == 2


def test_several_reasons_are_counted_most_trials_first(bench: Bench, tasks: Path, configured: Any) -> None:
    """Two slots run two trials, a third is in the queue: the other nine are beyond the job's own limit."""
    bench("submit", tasks, *SLOW, "--tries", "6", "--concurrency", "3", "--job-name", "mixed")
    seen: set[str] = set()

    def reasons() -> set[str]:
        rows = {row["job"]: row["waiting_for"] for row in json.loads(bench("jobs", "--json").out)}
        seen.add(rows["mixed"])
        return seen & {f"{count} concurrency, 1 slots" for count in range(2, 10)}

    until(reasons, what=lambda: seen)
    bench("cancel", "mixed")
    until(lambda: configured.ledger.progress("mixed").state is JobState.CLOSED)


def test_a_stopped_job_exits_with_1_and_names_the_flag_that_lets_it_go_on(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    done = bench("run", tasks, *NULL, "--tries", "4", "--job-name", "few", "--max-trials", "3")

    assert done.code == 1
    note = "stopped: 3 of 3 trials started · go on: bench resume few --max-trials N"
    for seen in (done, bench("results", "few"), bench("watch", "few")):
        assert note in words(seen.err)
        assert "5 trials not started and left out of every rate" in words(seen.err)
    assert all(len(line) <= 80 for line in bench("results", "few").err.splitlines())
    summary = json.loads(bench("results", "few", "--json").out)
    assert summary["budget"]["stopped_by"] == "max_trials"
    assert summary["budget"]["caps"] == {"max_trials": 3}
    rows = bench("results", "few", "--csv").out.splitlines()
    assert sum(",not_started," in row for row in rows) == 5
    assert {row["job"]: row["state"] for row in json.loads(bench("jobs", "--json").out)}["few"] == "stopped"


def test_a_stopped_job_goes_on_with_a_larger_cap_only(bench: Bench, tasks: Path, configured: Any) -> None:
    bench("run", tasks, *NULL, "--tries", "4", "--job-name", "grow", "--max-trials", "3")

    same = bench("resume", "grow")
    smaller = bench("resume", "grow", "--max-trials", "2")
    larger = bench("resume", "grow", "--retry", "not_started", "--max-trials", "6")

    assert (same.code, smaller.code, larger.code) == (2, 2, 0)
    assert words(same.err) == (
        "error Nothing may start of job 'grow': 3 of 3 trials started. Give a larger --max-trials."
    )
    assert "3 of 2 trials started" in smaller.err
    assert bench("watch", "grow").code == 1
    assert configured.ledger.progress("grow").outcomes["not_started"] == 2


def test_a_cap_can_be_raised_while_a_job_runs_and_while_it_is_paused(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("submit", tasks, *SLOW, "--tries", "10", "--concurrency", "1", "--job-name", "open")
    until(lambda: configured.ledger.progress("open").finished >= 1)

    lowered = bench("resume", "open", "--max-trials", "1")
    capped = bench("resume", "open", "--max-trials", "19")
    bench("pause", "open")
    freed = bench("resume", "open", "--max-trials", "20")

    assert (lowered.code, capped.code, freed.code) == (2, 0, 0)
    assert "of 1 trials started" in lowered.err
    assert configured.ledger.header("open").budget.trials == 20
    assert bench("watch", "open").code == 1
    assert configured.ledger.progress("open").outcomes["unscored"] == 20


def test_one_trial_is_cancelled_by_its_id(bench: Bench, tasks: Path, configured: Any) -> None:
    bench("submit", tasks, *SLOW, "--tries", "6", "--concurrency", "1", "--job-name", "some")

    waiting = bench("cancel", "some.two.slow.6", "--reason", "typo")
    unknown = bench("cancel", "some.two.slow.7")
    watched = bench("watch", "some")
    late = bench("cancel", "some.one.slow.1")

    assert (waiting.code, waiting.err) == (0, "some.two.slow.6 is cancelled\n")
    assert unknown.code == 2
    assert "Job 'some' has no trial 'some.two.slow.7'." in words(unknown.err)
    assert watched.code == 1
    assert configured.ledger.progress("some").outcomes["cancelled"] == 1
    assert configured.ledger.progress("some").outcomes["unscored"] == 11
    assert (late.code, late.err) == (0, "some.one.slow.1 was over before\n")
