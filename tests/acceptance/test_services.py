"""Tasks that have something done in a service beside the agent, from the job to what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.api import Client
from benchflow_client.errors import TaskError
from benchflow_client.schema.job import JobSpec
from tests.fleets import embedded_fleet

pytestmark = pytest.mark.docker

TASKS = Path(__file__).parents[1] / "assets" / "tasks"
WAIT_S = 180.0
IN_SERVICES = ("environment-entrypoint", "service-artifacts", "service-setup", "service-verifier")


@dataclass(frozen=True)
class Finished:
    """A closed job: outcome, reward and failure code of each task, and its folder."""

    endings: Mapping[str, tuple[str, float | None, str]]
    folders: Mapping[str, Path]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with embedded_fleet(home) as made:
        yield made


def run(client: Client, home: Path, agent: str) -> Finished:
    chosen = home / f"tasks-{agent}"
    chosen.mkdir()
    for name in IN_SERVICES:
        (chosen / name).symlink_to(TASKS / name)
    handle = client.submit(JobSpec(tasks=str(chosen), agent=(agent,), sandbox="docker", concurrency=3))
    handle.wait(timeout_s=WAIT_S)
    plan, trials = handle.results().plan, list(handle.trials())
    names = [plan.trial(trial.receipt.trial_index).task.name for trial in trials]
    results = [trial.result for trial in trials]
    return Finished(
        {
            name: (trial.receipt.outcome, trial.receipt.reward, trial.receipt.code)
            for name, trial in zip(names, trials, strict=True)
        },
        {
            name: home / "jobs" / handle.name / result.rollout_name
            for name, result in zip(names, results, strict=True)
            if result is not None
        },
    )


@pytest.fixture(scope="module")
def solved(client: Client, home: Path) -> Finished:
    return run(client, home, "oracle")


def test_the_solution_passes_wherever_commands_tests_and_files_are(solved: Finished) -> None:
    assert solved.endings == dict.fromkeys(IN_SERVICES, ("passed", 1.0, ""))


def test_an_idle_agent_passes_none_although_a_service_brought_a_reward(client: Client, home: Path) -> None:
    assert run(client, home, "nop").endings == dict.fromkeys(IN_SERVICES, ("failed", 0.0, ""))


def test_tests_ran_by_sh_in_the_service_that_has_no_bash(solved: Finished) -> None:
    kept = solved.folders["service-verifier"] / "verifier"

    assert (kept / "test-stdout.txt").read_text() == "in /srv/target by /usr/bin/dash\n"
    assert (kept / "reward.txt").read_text() == "1\n"


def test_artifacts_of_services_are_kept_and_named(solved: Finished) -> None:
    kept = solved.folders["service-artifacts"] / "artifacts"

    lines = json.loads((kept / "manifest.json").read_text())
    assert [(line.get("service"), line["source"], line["status"]) for line in lines] == [
        (None, "/app/answer.txt", "ok"),
        ("store", "requests.log", "ok"),
        ("store", "/srv/never-written", "failed"),
        ("once", "/srv/report.txt", "ok"),
    ]
    assert (kept / "store/requests.log").read_text() == "one request\n"
    assert (kept / "srv/report.txt").read_text() == "over\n"


def test_a_service_the_task_does_not_have_is_named_before_anything_starts(
    client: Client, tmp_path: Path
) -> None:
    task = tmp_path / "lost"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "environment/docker-compose.yaml").write_text("services: {main: {}, db: {image: x}}\n")
    (task / "environment/Dockerfile").write_text("FROM debian:bookworm-slim\n")
    (task / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    (task / "instruction.md").write_text("Do it.\n")
    (task / "task.toml").write_text(
        'version = "1.0"\nartifacts = [{source = "/x", service = "cache"}]\n[verifier]\nservice = "robot"\n'
        '[[environment.setup_commands]]\ncommand = "true"\nservice = "store"\n'
    )

    with pytest.raises(TaskError) as caught:
        client.submit(JobSpec(tasks=str(task), agent=("oracle",), sandbox="docker"))

    assert caught.value.problems == (
        "lost: artifacts[0].service: the task has no service 'cache'; it has main, db",
        "lost: sandbox.setup_commands[0].service: the task has no service 'store'; it has main, db",
        "lost: verifier.service: the task has no service 'robot'; it has main, db",
    )
