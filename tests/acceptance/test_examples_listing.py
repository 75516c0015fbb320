"""The example tasks are good examples: readable, without warnings, explained, cheap to build."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from benchflow_client.schema.job import JobSpec
from benchflow_client.tasks.check import check
from benchflow_client.tasks.discover import discover

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = sorted(folder for folder in (EXAMPLES / "tasks").iterdir() if folder.is_dir())


def test_there_are_six_in_both_forms_and_none_is_broken(tmp_path: Path) -> None:
    found = discover(EXAMPLES / "tasks", room=tmp_path)

    assert found.broken == ()
    assert {item.task.name: item.task.form for item in found.tasks} == {
        "convert-units": "task.md",
        "fix-median": "task.toml",
        "join-orders": "task.toml",
        "serve-dictionary": "task.md",
        "stamp-letter": "task.toml",
        "write-release-note": "task.toml",
    }


def test_their_check_finds_nothing_to_say() -> None:
    report = check(EXAMPLES / "tasks")

    assert {item.name: (*item.problems, *item.warnings) for item in report.tasks} == {
        folder.name: () for folder in TASKS
    }


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_only_the_python_task_installs_anything(folder: Path) -> None:
    lines = (folder / "environment/Dockerfile").read_text().splitlines()

    assert lines[0] == "FROM debian:bookworm-slim"
    assert any(line.startswith("RUN ") for line in lines) == (folder.name == "fix-median")


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_the_guide_explains_each(folder: Path) -> None:
    assert f"| `{folder.name}` |" in (EXAMPLES / "README.md").read_text()


def test_the_job_file_is_a_valid_job() -> None:
    spec = JobSpec.model_validate(yaml.safe_load((EXAMPLES / "job.yaml").read_text()))

    assert [agent.label for agent in spec.agent] == ["oracle", "nop"]
    assert spec.tasks == "examples/tasks"


@pytest.mark.parametrize(
    "agent", sorted((EXAMPLES / "agents").glob("hello_agent.*")), ids=lambda path: path.name
)
def test_the_example_agents_can_be_executed(agent: Path) -> None:
    assert os.access(agent, os.X_OK)
    assert agent.read_text().startswith("#!/")
