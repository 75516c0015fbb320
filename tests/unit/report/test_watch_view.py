"""What a watcher sees, and which changes are worth a line."""

from dataclasses import replace

import pytest

from benchflow_client.ledger.admission import Budget
from benchflow_client.ledger.base import JobHeader, JobProgress, JobState, RunningTrial
from benchflow_client.schema.summary import AgentGroup
from benchflow_client.watch import AgentLine, Snapshot, Watch, events, status_parts

START = 6000.0


def progress(
    *, total=24, running=4, released=0, state="open", retried=0, by="", reason="", at=START, **outcomes
):
    header = JobHeader(
        job="calm-otter-7f3a", total=total, concurrency=4, max_attempts=3, owner="ana", queue="q",
        group_id="g", body_id="b", title="t", created_at=START,
    )  # fmt: skip
    finished = sum(outcomes.values())
    return JobProgress(
        header=header,
        state=JobState(state),
        outcomes=outcomes,
        running=running,
        waiting=total - finished - running,
        released=released,
        reward_sum=0.0,
        retried=retried,
        cancelled_by=by,
        cancel_reason=reason,
        first_started_at=START if finished or running else 0.0,
        last_finished_at=at if finished else 0.0,
    )


BOUND = replace(progress().header, budget=Budget(deadline_s=60))


def observe(now=START + 10, *, watch=None, phases=(), waiting_for="", agents=(), main_cause="", **fields):
    running = [RunningTrial(n, "w", phase, 1, START, now) for n, phase in enumerate(phases)]
    snapshot = Snapshot(progress(**fields), running, now, waiting_for, agents, main_cause)
    return (watch or Watch()).observe(snapshot)


def test_view_counts_phases_outcomes_and_what_waits():
    view = observe(phases=("agent", "verifying", "agent"), running=3, passed=9, failed=8, retried=2)

    assert view.phases == (("agent", 2), ("verifying", 1))
    assert view.fraction == pytest.approx(17 / 24)
    assert status_parts(view) == (
        "running 3 (agent 2, verifying 1)",
        "waiting 4 (slots)",
        "passed 9",
        "failed 8",
        "retried 2x",
    )


def test_lost_and_cancelled_trials_are_shown_only_when_there_are_some():
    view = observe(running=0, passed=20, errored=1, verifier_errored=1, unscored=1, cancelled=1)

    assert view.outcomes == (("passed", 20), ("failed", 0), ("no verdict", 3), ("cancelled", 1))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"running": 4}, "slots"),
        ({"running": 1, "released": 3}, "slots"),
        ({"running": 0, "released": 4}, "slots"),
        ({"running": 0, "released": 0}, "release"),
        ({"running": 4, "waiting_for": "paused by ana: quota"}, "paused by ana: quota"),
        ({"running": 4, "total": 4, "waiting_for": "slots"}, ""),
    ],
)
def test_waiting_trials_have_a_reason(fields, reason):
    assert observe(**fields).waiting_for == reason


def test_there_is_no_forecast_before_a_trial_ended_or_in_the_first_second():
    assert observe().eta_s is None
    assert observe(now=START + 0.5, passed=1).eta_s is None
    assert observe(passed=3, state="cancelling").eta_s is None


def test_first_forecast_counts_running_trials_as_half_done():
    view = observe(now=START + 10, passed=2, running=4)

    assert view.eta_s == pytest.approx((24 - 4) * 10 / 4)


def test_forecast_follows_the_recent_pace_and_not_an_old_pause():
    watch = Watch()
    observe(START + 3600, watch=watch, total=100, passed=20)
    view = observe(START + 3620, watch=watch, total=100, passed=40)

    assert view.eta_s == pytest.approx(58)


def test_forecast_forgets_what_is_older_than_its_window():
    watch = Watch()
    for minute in range(60):
        view = observe(START + 60 * minute, watch=watch, total=1000, passed=2 * min(minute, 40) + 1)

    assert view.eta_s > 2 * 60 * 60


def test_forecast_of_a_finished_job_is_nothing_left():
    assert observe(passed=24, running=0).eta_s == 0


def test_clock_of_a_closed_job_stands_still():
    view = observe(now=START + 999, passed=24, running=0, state="closed", at=START + 16)

    assert (view.elapsed_s, view.is_over) == (16, True)
    assert observe(now=START - 50, passed=1, at=START + 3).elapsed_s == 3
    assert observe(running=0).elapsed_s == 0


def test_agents_are_shown_as_far_as_they_were_asked_for():
    group = AgentGroup(
        total=12, passed=2, failed=1, errored=0, verifier_errored=0, unscored=0, cancelled=0, unfinished=9,
        agent="oracle", is_control=True, score=2 / 3, scored_rate=2 / 3, interval_low=0.2, interval_high=0.9,
        design_effect=1.0, mean_reward=0.7, cost_usd=None, cost_coverage=None, tokens=None, token_coverage=None,
    )  # fmt: skip

    assert observe(agents=(group,)).agents == (AgentLine("oracle", 2, 3, 2 / 3),)


def test_an_empty_job_is_all_finished():
    assert observe(total=0, running=0).fraction == 1.0


def test_the_first_view_is_always_a_line():
    assert events(None, observe(now=START + 2, total=24)) == (
        "calm-otter-7f3a  0/24  running 4  waiting 20 (slots)  0:02",
    )


def test_nothing_new_is_no_line():
    assert events(observe(now=START + 1), observe(now=START + 2)) == ()


def test_one_finished_trial_of_many_is_no_line_but_a_tenth_is():
    before = observe(total=100, passed=8)

    assert events(before, observe(total=100, passed=9)) == ()
    assert events(before, observe(total=100, passed=10)) == (
        "calm-otter-7f3a  10/100  running 4  waiting 86 (slots)  passed 10  failed 0  0:10  eta 1:13",
    )


def test_the_start_is_a_line():
    assert len(events(observe(running=0, released=4), observe(running=1, released=3))) == 1


def test_a_minute_without_change_is_a_heartbeat():
    assert events(observe(now=START + 59), observe(now=START + 60)) == (
        "calm-otter-7f3a  0/24  running 4  waiting 20 (slots)  1:00",
    )


def test_cancelling_names_who_and_why():
    after = observe(state="cancelling", by="li", reason="wrong model")

    lines = events(observe(), after)

    assert lines[0] == "calm-otter-7f3a  cancelled by li: wrong model"
    assert lines[1].endswith("cancelled by li: wrong model  0:10")


def test_a_cancel_without_a_reason_names_who():
    assert events(observe(), observe(state="cancelling", by="li"))[0] == "calm-otter-7f3a  cancelled by li"


def test_lost_executions_and_new_reasons_are_lines():
    before = observe(waiting_for="budget")

    assert events(before, observe(waiting_for="budget", retried=1))[0] == (
        "calm-otter-7f3a  1 execution lost to infrastructure, started again"
    )
    assert events(before, observe(waiting_for="paused by ana"))[0] == (
        "calm-otter-7f3a  now waiting for: paused by ana"
    )


def test_counts_of_reasons_are_no_news_but_another_main_reason_is():
    before = observe(waiting_for="5 slots, 1 retry delay", main_cause="slots")

    assert events(before, observe(waiting_for="4 slots, 2 retry delay", main_cause="slots")) == ()
    assert events(before, observe(waiting_for="4 max-trials, 1 slots", main_cause="max-trials"))[0] == (
        "calm-otter-7f3a  now waiting for: 4 max-trials, 1 slots"
    )


def test_the_end_is_told_once():
    end = observe(state="closed", running=0, passed=24, at=START + 16)

    assert events(observe(passed=23, running=1), end) == (
        "calm-otter-7f3a  24/24  passed 24  failed 0  0:16  finished",
    )
    assert events(end, end) == ()


def test_trials_that_were_not_started_are_counted_by_themselves():
    view = observe(running=0, state="stopping", passed=2, not_started=22)

    assert view.outcomes == (("passed", 2), ("failed", 0), ("not started", 22))


def test_a_job_that_stops_by_itself_says_why_and_one_that_was_cancelled_who():
    stopped = Snapshot(
        replace(progress(state="stopping", passed=2), stop_cause="deadline", header=BOUND), [], START + 10
    )
    before, view = observe(passed=2), Watch().observe(stopped)

    assert status_parts(view)[-1] == "stopped: 60 s are over"
    assert events(before, view)[0] == "calm-otter-7f3a  stopped: 60 s are over"
    cancelled = stopped._replace(progress=replace(stopped.progress, cancelled_by="ana"))
    assert Watch().observe(cancelled).cancelled == "cancelled by ana"
