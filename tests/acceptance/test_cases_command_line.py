"""What people read: infrastructure is never a zero, brackets are brackets, check and run agree."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchflow_client import settings
from benchflow_client.api import Client
from benchflow_client.errors import JobSpecError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import Receipt, TrialResult
from benchflow_client.store.documents import write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import plan_key, result_key
from benchflow_client.summary import aggregate
from benchflow_workers.trial.recorder import result_of
from benchflow_workers.trial.records import Attempt, Rollout
from benchflow_workers.trial.redact import Redactor
from tests.fleets import PLAIN, run_bench
from tests.worlds import write_task

JOB = "amber-ant-0001"
ENDINGS: Mapping[str, Rollout] = {
    "solved": Rollout(rewards={"reward": 1.0}),
    "not-solved": Rollout(rewards={"reward": 0.0}),
    "no-daemon": Rollout(
        failures=(Failure(code="sandbox.unavailable", message="No Docker daemon answers."),)
    ),
    "slow-tests": Rollout(failures=(Failure(code="verifier.timeout", message="Timed out after 30 s."),)),
    "no-number": Rollout(rewards={}),
}
"""Task -> what its only trial came to; three of five never reached a verdict."""


@pytest.fixture
def plan() -> Plan:
    agent = AgentSpec(name="agents/bot.sh")
    return Plan(
        job=JOB,
        created_at=utc_now(),
        spec=JobSpec(tasks="tasks", agent=(agent,)),
        sandbox="docker",
        source=SourceInfo(path="tasks"),
        tasks=tuple(PlannedTask(name=name, slug=name, digest="0" * 64) for name in ENDINGS),
        agents=(PlannedAgent(label="bot", slug="bot", spec=agent),),
    )


@pytest.fixture
def results(plan: Plan) -> list[TrialResult]:
    """The results as a worker writes them."""
    attempts = (Attempt(plan, plan.trial(i), 1, 1, "box/1", utc_now()) for i in range(plan.size))
    return [
        result_of(attempt, rollout, Redactor())
        for attempt, rollout in zip(attempts, ENDINGS.values(), strict=True)
    ]


@pytest.fixture
def home(tmp_path: Path, plan: Plan, results: list[TrialResult]) -> Path:
    """A folder with the job's documents, as a store holds them."""
    store = FileStore(tmp_path / "jobs")
    write_document(store, plan_key(JOB), plan)
    for result in results:
        write_document(store, result_key(JOB, result.rollout_name), result)
    return tmp_path


def test_trials_without_a_verdict_are_no_zeros_in_the_summary(plan: Plan, results: list[TrialResult]) -> None:
    summary = aggregate(plan, [Receipt.of(result) for result in results], elapsed_s=1.0)

    assert (summary.passed, summary.failed, summary.without_verdict, summary.total) == (1, 1, 3, 5)
    assert (summary.errored, summary.verifier_errored, summary.unscored) == (1, 1, 1)
    assert summary.score_ratio == 0.2
    assert summary.score_excl_errors_ratio == 0.5
    assert summary.mean_reward == 0.5


def test_both_denominators_are_shown_and_labelled(home: Path) -> None:
    done = run_bench("results", JOB, home=home)

    head, row = done.stderr.splitlines()[:2]
    assert done.returncode == 0
    assert " ".join(head.split()) == "agent passed score of scored, 95% mean reward unscored cost"
    assert row.split()[:4] == ["bot", "1/5", "0.20", "0.50"]
    assert row.split()[-3:] == ["0.50", "3", "–"]
    assert "2 scored (1 passed, 1 failed) · 3 without a verdict" in done.stderr
    for code in ("sandbox.unavailable", "verifier.timeout", "unscored"):
        assert code in done.stderr


def test_data_has_null_and_not_zero_where_there_is_no_verdict(home: Path) -> None:
    summary = json.loads(run_bench("results", JOB, "--json", home=home).stdout)
    rows = list(csv.DictReader(io.StringIO(run_bench("results", JOB, "--csv", home=home).stdout)))

    assert (summary["passed"], summary["failed"], summary["total"]) == (1, 1, 5)
    assert summary["errored"] + summary["verifier_errored"] + summary["unscored"] == 3
    assert {row["task"]: row["reward"] for row in rows} == {
        "solved": "1.0",
        "not-solved": "0.0",
        "no-daemon": "",
        "slow-tests": "",
        "no-number": "",
    }


@pytest.mark.root
def test_check_and_run_agree_about_a_task_without_an_agent_table(tmp_path: Path) -> None:
    files = {**PLAIN, "instruction.md": "Keep [bold]brackets[/bold] and [agent] as they are.\n"}
    write_task(tmp_path / "tasks" / "plain", toml="[verifier]\ntimeout_sec = 30\n", files=files)

    checked = run_bench("check", "tasks", home=tmp_path)
    ran = run_bench("run", "tasks", "--agent", "oracle", "--sandbox", "local", home=tmp_path)

    assert (checked.returncode, ran.returncode) == (0, 0), checked.stderr + ran.stderr
    assert "1 of 1 can be run" in checked.stderr
    assert "1/1" in ran.stderr


def test_check_and_run_refuse_a_task_in_the_same_words_with_their_brackets(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "[red]odd", toml='[agent]\ntimeout_sec = "ten"\n', files=PLAIN)

    checked = run_bench("check", "tasks", home=tmp_path)
    ran = run_bench("run", "tasks", "--agent", "oracle", "--sandbox", "null", home=tmp_path)

    assert (checked.returncode, ran.returncode) == (1, 2)
    for output in (checked.stderr, ran.stderr):
        assert "[red]odd" in output
        assert "agent.timeout_sec" in output or "[agent] timeout_sec" in output
        assert "'ten'" in output or '"ten"' in output
    assert not (tmp_path / "jobs").exists()


def test_markup_in_an_error_is_shown_letter_by_letter(tmp_path: Path) -> None:
    done = run_bench("run", "no/[agent]/[/bold]", "--agent", "oracle", home=tmp_path)

    assert done.returncode == 2
    assert "no/[agent]/[/bold]" in done.stderr


def test_links_that_leave_a_task_are_refused_by_check_and_run_with_their_path(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks" / "linked", files=PLAIN)
    (task / "environment" / "to-host").symlink_to("/etc/hostname")
    (task / "environment" / "to-folder").symlink_to("/etc")
    (task / "environment" / "inside").symlink_to("Dockerfile")

    for arguments in (("check", "tasks"), ("run", "tasks", "--agent", "oracle", "--sandbox", "null")):
        done = run_bench(*arguments, home=tmp_path)

        assert done.returncode != 0
        assert "environment/to-host" in done.stderr
        assert "environment/to-folder" in done.stderr
        assert "environment/inside" not in done.stderr
    assert not (tmp_path / "jobs").exists()


def test_a_dockerfile_written_for_the_repository_root_is_explained_before_anything_is_built(
    tmp_path: Path,
) -> None:
    dockerfile = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY tasks/rooted/data /opt/data\n"
    task = write_task(tmp_path / "tasks" / "rooted", files={**PLAIN, "environment/Dockerfile": dockerfile})
    (task / "data").mkdir()

    done = run_bench("check", "tasks", home=tmp_path)

    assert "Dockerfile, line 3" in done.stderr
    assert "tasks/rooted/data" in done.stderr


def test_secret_in_clear_is_refused_and_not_shown(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "plain", files=PLAIN)
    job = "tasks: tasks\nagent: nop\nsandbox: 'null'\nagent_env: ['MY_API_KEY=made-up-value']\n"
    (tmp_path / "job.yaml").write_text(job)

    done = run_bench("run", "-f", "job.yaml", home=tmp_path)

    assert done.returncode == 2, done.stderr
    assert "--agent-env MY_API_KEY" in done.stderr
    assert "made-up-value" not in done.stderr + done.stdout
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("name", ["SERVICE_TOKEN", "COOKIE", "AUTHORIZATION", "db_password"])
def test_secrets_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    task = write_task(tmp_path / "tasks" / "plain")
    agent = AgentSpec(name="nop", env=(f"{name}=made-up-value",))
    client = Client(settings=settings.load({"BENCHFLOW_STATE_DIR": str(tmp_path / "state")}))

    with pytest.raises(JobSpecError, match=name):
        client.draft(JobSpec(tasks=str(task), agent=(agent,), sandbox="null"))


def test_settings_may_be_given_in_clear_and_secrets_by_name(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "plain", files=PLAIN)
    given = ("EFFORT=medium", "MAX_TOKENS=200000", "AUTH=none", "KEYBOARD=english", "MY_API_KEY")
    flags = [word for item in given for word in ("--agent-env", item)]

    done = run_bench("run", "tasks", "--agent", "nop", *flags, "--dry-run", home=tmp_path)

    assert done.returncode == 0, done.stderr
