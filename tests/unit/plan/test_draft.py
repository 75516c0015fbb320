"""From a spec to a plan: everything that can be known before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.dispatch import job_header
from benchflow_client.errors import JobSpecError, TaskError, UnknownAgentError
from benchflow_client.plan.draft import Draft, find_work, make_draft
from benchflow_client.plan.identity import job_identity
from benchflow_client.schema.job import JobSpec

FILES = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Do it.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\n",
    "tests/test.sh": "exit 0\n",
}
Drafter = Callable[..., Draft]


def write_task(folder: Path, **files: str) -> Path:
    for path, text in {**FILES, **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_task(tmp_path / "tasks" / name, **{"instruction.md": f"Do {name}.\n"})
    return tmp_path / "tasks"


@pytest.fixture
def draft(tasks: Path, tmp_path: Path) -> Drafter:
    def make(sandbox: str = "null", **fields: Any) -> Draft:
        spec = JobSpec.model_validate({"tasks": str(tasks), "agent": "nop", **fields})
        return make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox=sandbox)

    return make


def script(folder: Path, name: str = "mine.sh", text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_a_plan_lists_tasks_by_name_and_agents_as_given(draft: Drafter, tasks: Path) -> None:
    plan = draft(agent=["oracle", "nop"], tries=3, job_name="mine").plan

    assert (plan.job, plan.size, plan.sandbox) == ("mine", 12, "null")
    assert [(task.name, task.slug) for task in plan.tasks] == [("one", "one"), ("two", "two")]
    assert [agent.label for agent in plan.agents] == ["oracle", "nop"]
    assert (plan.source.path, plan.source.repo, plan.skipped) == (str(tasks), None, ())


def test_a_job_without_a_name_gets_a_new_one(draft: Drafter) -> None:
    assert draft().plan.job != draft().plan.job


def test_each_digest_has_its_folder(draft: Drafter, tasks: Path) -> None:
    found = draft()

    assert {task.digest: tasks / task.name for task in found.plan.tasks} == found.folders
    assert sorted(folder.name for folder in found.folders.values()) == ["one", "two"]


def test_tasks_are_chosen_by_glob_and_number(draft: Drafter) -> None:
    assert [task.name for task in draft(include="t*").plan.tasks] == ["two"]
    assert [task.name for task in draft(exclude="t*").plan.tasks] == ["one"]
    assert [task.name for task in draft(limit=1).plan.tasks] == ["one"]
    with pytest.raises(TaskError, match="No task is left"):
        draft(include="zzz")


def test_names_of_folders_that_no_file_may_have_get_slugs(draft: Drafter, tasks: Path) -> None:
    write_task(tasks / "Fix It")

    plan = draft().plan

    assert [task.name for task in plan.tasks] == ["Fix It", "one", "two"]
    assert plan.tasks[0].slug.startswith("fix-it-")


def test_the_same_agent_twice_is_numbered(draft: Drafter) -> None:
    plan = draft(agent=["nop", "nop", "nop"]).plan

    assert [agent.label for agent in plan.agents] == ["nop", "nop#2", "nop#3"]
    assert len({agent.slug for agent in plan.agents}) == 3


def test_a_script_travels_as_a_bundle_of_its_own(draft: Drafter, tmp_path: Path) -> None:
    path = script(tmp_path / "agents", text="#!/bin/sh\necho hi\n")
    script(tmp_path / "agents", "secret.env", "KEY=1\n")

    found = draft(agent=str(path))

    (agent,) = found.plan.agents
    folder = found.folders[agent.bundle or ""]
    assert (agent.label, agent.script) == ("mine", "mine.sh")
    assert [item.name for item in folder.iterdir()] == ["mine.sh"]
    assert (folder / "mine.sh").read_bytes() == path.read_bytes()
    assert os.access(folder / "mine.sh", os.X_OK)


def test_two_scripts_of_one_name_stay_apart(draft: Drafter, tmp_path: Path) -> None:
    one = script(tmp_path / "a", text="#!/bin/sh\n1\n")
    two = script(tmp_path / "b", text="#!/bin/sh\n2\n")

    plan = draft(agent=[str(one), str(two)]).plan

    assert [agent.label for agent in plan.agents] == ["mine", "mine#2"]
    assert plan.agents[0].bundle != plan.agents[1].bundle


def test_a_script_that_changed_is_another_bundle(draft: Drafter, tmp_path: Path) -> None:
    path = script(tmp_path / "agents")
    before = draft(agent=str(path)).plan.agents[0].bundle
    path.write_text("#!/bin/sh\nnew\n")

    assert draft(agent=str(path)).plan.agents[0].bundle != before


def test_an_agent_that_is_not_there_is_told(draft: Drafter, tmp_path: Path) -> None:
    with pytest.raises(UnknownAgentError, match="'orcale'"):
        draft(agent="orcale")
    with pytest.raises(JobSpecError, match="is not a file"):
        draft(agent=str(tmp_path / "no.sh"))
    with pytest.raises(JobSpecError, match="is not a file"):
        draft(agent=f"{tmp_path}/")


def test_a_script_that_cannot_be_staged_is_told(draft: Drafter, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way\n")

    with pytest.raises(JobSpecError, match=r"cannot be read: (Not a directory|File exists)"):
        draft(agent=str(script(tmp_path / "agents")))


def test_every_broken_task_is_listed_at_once(draft: Drafter, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text("[agent\n")
    (tasks / "two/instruction.md").unlink()

    with pytest.raises(TaskError) as caught:
        draft()

    assert caught.value.message == "2 tasks cannot be read."
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {"one", "two"}
    assert caught.value.hint == "Correct the files."


def test_one_broken_task_may_be_left_out(draft: Drafter, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text("[agent\n")

    with pytest.raises(TaskError) as caught:
        draft()
    assert caught.value.message == "Task 'one' cannot be read."
    assert "--skip-invalid" in caught.value.hint

    plan = draft(skip_invalid=True).plan
    assert ([task.name for task in plan.tasks], plan.skipped) == (["two"], ("one",))
    assert [task.name for task in draft(exclude="one").plan.tasks] == ["two"]


def test_what_a_sandbox_cannot_do_is_told_before_anything_is_sent(draft: Drafter, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text('version = "1.0"\n[environment]\ngpus = 1\n')

    with pytest.raises(TaskError) as caught:
        draft("local")
    assert caught.value.message == "Sandbox 'local' cannot run every task."
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["one"]

    assert draft("null").plan.size == 2
    assert draft("local", exclude="one").plan.size == 1


def test_job_with_a_task_that_asks_for_gpus_goes_whole_to_the_queue_of_workers_that_have_them(
    draft: Drafter, tasks: Path
) -> None:
    (tasks / "one/task.toml").write_text('version = "1.0"\n[environment]\ngpus = 1\ngpu_types = ["H100"]\n')

    whole, without, unsold = (
        draft("docker").plan, draft("docker", exclude="one").plan, draft("null").plan,
    )  # fmt: skip

    assert (whole.needs_gpus, whole.queue, job_header(whole, owner="ana").queue) == (
        True, "docker.gpu", "docker.gpu",
    )  # fmt: skip
    assert [plan.queue for plan in (without, unsold)] == ["docker", "null"]


def test_same_trials_are_the_same_whatever_queue_they_go_to(draft: Drafter) -> None:
    plan = draft("docker").plan

    assert job_identity(plan) == job_identity(plan.model_copy(update={"needs_gpus": True}))


def test_warnings_of_tasks_name_them(draft: Drafter, tasks: Path) -> None:
    (tasks / "one/task.toml").write_text('version = "1.0"\nunheard_of = 1\n')

    warnings = draft().warnings

    assert warnings
    assert all(warning.startswith("one: ") for warning in warnings)
