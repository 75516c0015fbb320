"""Reports as records: what is said, before any terminal."""

import json
from datetime import UTC, datetime

import pytest

from benchflow_client.ledger.base import JobHeader, JobProgress, JobState
from benchflow_client.report import (
    Check,
    Line,
    Table,
    WorkerRow,
    detached_report,
    doctor_report,
    done_report,
    failure_report,
    job_row,
    jobs_report,
    plan_report,
    report_data,
    summary_report,
    workers_report,
)
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import Receipt
from benchflow_client.summary import aggregate


def make_plan(*, tasks=6, agents=("oracle", "nop"), tries=2, skipped=(), **spec):
    job = JobSpec(tasks="tasks", agent=agents, tries=tries, **spec)
    return Plan(
        job="calm-otter-7f3a",
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=job,
        sandbox="docker",
        source=SourceInfo(path="tasks"),
        tasks=tuple(PlannedTask(name=f"t{n}", slug=f"t{n}", digest=f"{n:064x}") for n in range(tasks)),
        agents=tuple(
            PlannedAgent(label=agent.name, slug=agent.name, spec=agent) for agent in job.resolved_agents()
        ),
        skipped=skipped,
    )


def receipt(index, outcome, reward=None, code="", *, attempts=1, cost_usd=None, tokens=None):
    return Receipt(index, outcome, reward, code, attempts, 2.0, cost_usd, tokens, "t")


def summarize(plan, receipts, elapsed_s=16.0):
    return aggregate(plan, receipts, elapsed_s=elapsed_s)


def cells(report):
    return [row.cells for block in report if isinstance(block, Table) for row in block.rows]


def texts(report):
    return [block.text for block in report if isinstance(block, Line)]


def test_plan_says_how_many_trials_and_why_so_many():
    assert texts(plan_report(make_plan(), fleet="embedded (1 worker, 4 slots)")) == [
        "6 tasks x 2 agents x 2 tries = 24 trials · sandbox docker · 4 at once",
        "settings that change a score: timeouts x1.0, network as each task says",
        "embedded (1 worker, 4 slots)        job  calm-otter-7f3a",
    ]


def test_plan_names_every_setting_that_changes_a_score():
    plan = make_plan(
        tasks=1, agents=("nop",), tries=1, timeout_multiplier=2.5, agent_timeout_s=60, sandbox_user="root",
        limit=1, skipped=("bad",),
    )  # fmt: skip

    assert texts(plan_report(plan, fleet="")) == [
        "1 task x 1 agent x 1 try = 1 trial · sandbox docker · 4 at once",
        "settings that change a score: timeouts x2.5, agent 60 s, network as each task says, "
        "agent runs as root: tests are not protected, a part of the tasks",
        "left out, cannot be read: bad",
        "calm-otter-7f3a",
    ]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"loop": "self-review:k=2"}, "loop self-review:k=2"),
        ({"user": "patient"}, "user patient"),
        ({"skill_mode": "with-skill"}, "skills of each task"),
        ({"skill_mode": "self-gen"}, "skills that agents write first"),
    ],
)
def test_plan_names_who_talks_to_the_agent_and_what_helps_it(spec, told):
    lines = texts(plan_report(make_plan(**spec), fleet=""))

    assert lines[1] == f"settings that change a score: timeouts x1.0, network as each task says, {told}"


def test_summary_of_a_job_with_skills_says_how_often_they_were_used():
    receipts = [receipt(n, "passed", 1.0)._replace(skill_uses=n % 2) for n in range(24)]

    with_skills = summary_report(summarize(make_plan(skill_mode="with-skill"), receipts))

    assert "skills (with-skill): used 0.5 times a trial" in texts(with_skills)
    assert not [text for text in texts(summary_report(summarize(make_plan(), receipts))) if "skills" in text]


def test_summary_has_a_row_per_agent_with_its_interval():
    receipts = [receipt(n, "passed", 1.0) if n % 2 == 0 else receipt(n, "failed", 0.0) for n in range(24)]

    report = summary_report(summarize(make_plan(), receipts))

    assert cells(report) == [
        ("oracle", "12/12", "1.00", "0.76 – 1.00", "1.00", "0", "–"),
        ("nop", "0/12", "0.00", "0.00 – 0.24", "0.00", "0", "–"),
    ]
    assert texts(report) == ["Only controls ran: these numbers are about the tasks, not about an agent."]


def test_missing_verdicts_put_the_scored_rate_beside_the_score():
    plan = make_plan(tasks=4, agents=("oracle", "claude"), tries=1)
    receipts = [receipt(n, "passed", 1.0) for n in (0, 1, 2, 4, 6)]
    receipts += [receipt(3, "failed", 0.0, cost_usd=0.5), receipt(5, "errored", code="sandbox.lost")]

    report = summary_report(summarize(plan, receipts))

    assert report[0].columns[3].title == "of scored, 95%"
    assert cells(report) == [
        ("claude", "1/3", "0.33", "0.50 (0.09–0.91)", "0.50", "1", "≥$0.50"),
        ("oracle *", "4/4", "1.00", "1.00 (0.51–1.00)", "1.00", "0", "–"),
    ]
    assert texts(report) == [
        " * control: checks the tasks, is in no agent's numbers",
        "1 trial unfinished: these numbers will change.",
    ]


def test_an_agent_without_any_verdict_has_no_numbers():
    plan = make_plan(tasks=1, agents=("claude",), tries=1)

    report = summary_report(summarize(plan, [receipt(0, "unscored")]))

    assert cells(report) == [("claude", "0/1", "0.00", "–", "–", "1", "–")]


def test_several_tries_and_known_usage_are_told_below_the_table():
    plan = make_plan(tasks=2, agents=("claude",), tries=2)
    receipts = [
        receipt(0, "passed", 1.0, tokens=1500, attempts=3),
        receipt(1, "passed", 1.0, tokens=1500),
        receipt(2, "passed", 1.0, tokens=1500),
        receipt(3, "failed", 0.0, tokens=1500),
    ]

    assert texts(summary_report(summarize(plan, receipts))) == [
        "claude: at least one of 2 tries passes 1.00, all of them 0.50",
        "retried 2x after infrastructure failures · 6.0k tokens",
    ]


def test_retries_alone_are_told_and_tokens_alone_too():
    plan = make_plan(tasks=1, agents=("claude",), tries=1)

    retried = summary_report(summarize(plan, [receipt(0, "passed", 1.0, attempts=2)]))
    counted = summary_report(summarize(plan, [receipt(0, "passed", 1.0, tokens=10)]))

    assert texts(retried) == ["retried 1x after infrastructure failures"]
    assert texts(counted) == ["10 tokens"]


def test_failures_are_grouped_by_cause_with_the_next_step():
    plan = make_plan(tasks=5, agents=("claude",), tries=1)
    receipts = [
        receipt(0, "passed", 1.0),
        receipt(1, "errored", code="sandbox.start_failed", attempts=2),
        receipt(2, "errored", code="sandbox.start_failed", attempts=2),
        receipt(3, "verifier_errored", code="verifier.no_reward"),
        receipt(4, "failed", 0.0, code="agent.timeout"),
    ]

    report = failure_report(
        summarize(plan, receipts), evidence={"verifier.no_reward": "tests/test.sh ended with exit 1"}
    )

    assert texts(report) == ["2 scored (1 passed, 1 failed) · 3 without a verdict"]
    start, reward, timeout = report[1].rows
    assert start.cells == ("2", "sandbox.start_failed", "infrastructure · retried 2x", "tasks: t1, t2")
    assert start.notes[-1] == "next: check the worker's log, then run the job again"
    assert reward.cells == ("1", "verifier.no_reward", "task author", "tasks: t3")
    assert reward.notes[0] == "tests/test.sh ended with exit 1"
    assert timeout.cells[2] == "agent · scored"


def test_no_failure_is_no_report():
    plan = make_plan(tasks=1, agents=("claude",), tries=1)

    assert failure_report(summarize(plan, [receipt(0, "passed", 1.0)])) == ()


def test_many_causes_are_cut_with_the_way_to_all():
    plan = make_plan(tasks=14, agents=("claude",), tries=1)
    receipts = [receipt(n, "errored", code=f"moon.{n:02}") for n in range(13)] + [receipt(13, "unscored")]

    report = failure_report(summarize(plan, receipts))

    assert len(report[1].rows) == 12
    assert report[-1].text == "2 more causes: bench results calm-otter-7f3a --json"


def test_a_cause_without_a_code_goes_by_its_outcome():
    plan = make_plan(tasks=1, agents=("claude",), tries=1)

    (row,) = failure_report(summarize(plan, [receipt(0, "unscored")]))[1].rows

    assert row.cells == ("1", "unscored", "agent", "tasks: t0")
    assert row.notes == ("nothing to score",)


def test_last_lines_say_where_to_go_on():
    plan = make_plan(tasks=1, agents=("claude",), tries=1)

    assert texts(done_report(summarize(plan, []), folder="jobs/x")) == [
        "done in 16 s · results jobs/x · next: bench results calm-otter-7f3a"
    ]
    assert texts(detached_report("x")) == [
        "still running on the fleet · watch: bench watch x · stop: bench cancel x"
    ]


@pytest.mark.parametrize(
    ("state", "by", "running", "word"),
    [
        ("open", "", 3, "running"),
        ("open", "", 0, "running"),
        ("cancelling", "li", 1, "cancelling"),
        ("closed", "", 0, "done"),
        ("closed", "li", 0, "cancelled"),
    ],
)
def test_jobs_show_state_and_score_of_what_ended(state, by, running, word):
    header = JobHeader(
        job="red-finch-02b1", total=10, concurrency=4, max_attempts=3, owner="li", queue="q", group_id="g",
        body_id="b", title="t", created_at=0.0,
    )  # fmt: skip
    progress = JobProgress(
        header=header, state=JobState(state), outcomes={"passed": 2, "failed": 1, "cancelled": 3},
        running=running, waiting=4 - running, released=0, reward_sum=2.0, retried=0, cancelled_by=by,
        cancel_reason="", first_started_at=1.0, last_finished_at=2.0,
    )  # fmt: skip

    (row,) = cells(jobs_report([job_row(progress, waiting_for="slots")]))

    assert row == ("red-finch-02b1", "li", word, "6/10", f"(+{running})" if running else "", "0.67", "slots")


def test_a_job_before_its_first_trial_waits_and_has_no_score():
    header = JobHeader(
        job="j", total=1, concurrency=1, max_attempts=1, owner="li", queue="q", group_id="g", body_id="b",
        title="t", created_at=0.0,
    )  # fmt: skip
    progress = JobProgress(
        header=header, state=JobState.OPEN, outcomes={}, running=0, waiting=1, released=0, reward_sum=0.0,
        retried=0, cancelled_by="", cancel_reason="", first_started_at=0.0, last_finished_at=0.0,
    )  # fmt: skip

    assert cells(jobs_report([job_row(progress)])) == [("j", "li", "waiting", "0/1", "", "–", "–")]


def test_workers_show_slots_and_who_drains_them():
    rows = [
        WorkerRow("box-1/1", ("docker", "local"), 8, 8, 7, "healthy", 7300),
        WorkerRow("box-2/1", ("docker",), 0, 8, 8, "draining", 61, "li: kernel update"),
        WorkerRow("box-3/1", (), 2, 2, 0, "silent", None),
    ]

    assert cells(workers_report(rows)) == [
        ("box-1/1", "docker,local", "8/8", "7", "healthy", "2 h"),
        ("box-2/1", "docker", "0/8", "8", "draining", "1 min (li: kernel update)"),
        ("box-3/1", "", "2/2", "0", "silent", "–"),
    ]


def test_findings_line_up_and_have_their_fix_below():
    report = doctor_report([Check("PASS", "python", "3.12"), Check("FAIL", "s3", "no bucket", "make one")])

    assert [(line.label, line.text) for line in report] == [
        ("PASS  python", "3.12"),
        ("FAIL  s3    ", "no bucket"),
        ("            ", "make one"),
    ]
    assert doctor_report([]) == ()


def test_reports_are_plain_data_for_programs():
    plan = make_plan(tasks=1, agents=(AgentSpec(name="claude"),), tries=1)

    data = report_data(summary_report(summarize(plan, [])))

    assert json.loads(json.dumps(data))[0]["rows"][0]["cells"][0] == "claude"
    assert [block["kind"] for block in data] == ["table", "line"]
    assert data[1]["label"] == "note"


def test_a_job_that_forgot_why_it_stopped_is_told_by_the_trials_that_never_started():
    plan = make_plan()
    header = JobHeader(
        job=plan.job, total=4, concurrency=4, max_attempts=3, owner="ana", queue="null", group_id="g",
        body_id="b", title="t", created_at=0.0,
    )  # fmt: skip
    progress = JobProgress(
        header=header, state=JobState.CLOSED, outcomes={"passed": 1, "not_started": 3}, running=0, waiting=0,
        released=0, reward_sum=1.0, retried=0, cancelled_by="", cancel_reason="", first_started_at=0.0,
        last_finished_at=0.0,
    )  # fmt: skip

    assert job_row(progress).state == "stopped"
