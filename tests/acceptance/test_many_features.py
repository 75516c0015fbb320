"""Tasks that combine many features, from the job to what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.api import Client
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.job import JobSpec
from tests.fleets import embedded_fleet

TASKS = Path(__file__).parents[1] / "assets" / "tasks"
WAIT_S = 180.0
KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("many")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with embedded_fleet(home) as made:
        yield made


def run(client: Client, task: str, sandbox: str) -> dict[str, PublishedTrial]:
    """Return the trials of a task by agent."""
    handle = client.submit(
        JobSpec(tasks=str(TASKS / task), agent=("oracle", "nop"), sandbox=sandbox, max_attempts=2)
    )
    handle.wait(timeout_s=WAIT_S)
    plan = handle.results().plan
    return {plan.trial(trial.receipt.trial_index).agent.label: trial for trial in handle.trials()}


def kept(home: Path, trial: PublishedTrial) -> dict[str, str]:
    assert trial.result is not None
    folder = home / "jobs" / trial.result.job / trial.result.rollout_name
    files = (
        path for path in folder.rglob("artifacts/**/*") if path.is_file() and path.name != "manifest.json"
    )
    return {path.name: path.read_text() for path in files}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_set_up_services_and_artifacts_go_together(client: Client, home: Path, kind: str) -> None:
    trials = run(client, "many-features", kind)

    solved, idle = (trials[name].result for name in ("oracle", "nop"))
    assert solved is not None
    assert idle is not None
    assert [(step.name, step.rewards) for step in solved.steps] == [
        ("build", {"reward": 1.0, "word": 1.0}),
        ("write report", {"reward": 1.0}),
    ]
    assert (solved.reward, idle.reward) == (1.0, 0.0)
    assert [step.name for step in idle.steps] == ["build"]
    assert kept(home, trials["oracle"]) == {"page": "seed all\ngiven\n"}


@pytest.mark.docker
def test_side_cars_volumes_and_tests_beside_the_agent_go_together(client: Client, home: Path) -> None:
    trials = run(client, "many-services", "docker")

    endings = {name: (trial.receipt.outcome, trial.receipt.reward) for name, trial in trials.items()}
    assert endings == {"oracle": ("passed", 1.0), "nop": ("failed", 0.0)}
    assert kept(home, trials["oracle"]) == {"page": "first second\n"}
