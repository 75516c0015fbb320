"""A job with skills: folders it may bring, tasks it may run, what of both is in its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import JobSpecError, TaskError
from benchflow_client.plan.draft import Draft, find_work, make_draft
from benchflow_client.schema.job import JobSpec
from tests.worlds import write_task

Drafter = Callable[..., Draft]
SKILL = "---\nname: pdf\ndescription: Read PDF files.\n---\n"


@pytest.fixture
def draft(tmp_path: Path) -> Drafter:
    """Return the draft of a job over the tasks below the test's folder."""

    def make(**fields: Any) -> Draft:
        spec = JobSpec.model_validate({"tasks": str(tmp_path / "tasks"), "agent": "oracle", **fields})
        return make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="local")

    return make


def write_skills(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(SKILL)
    return folder


def test_a_folder_of_skills_travels_with_the_job(draft: Drafter, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    folder = write_skills(tmp_path / "skills", "pdf", "xlsx")
    (folder / "README.md").write_text("What these are.\n")

    made = draft(skill_mode="with-skill", skills_dir=str(folder))

    assert made.plan.skills is not None
    assert made.plan.skills.names == ("pdf", "xlsx")
    assert made.folders[made.plan.skills.bundle] == folder


def test_skills_for_writing_skills_travel_too(draft: Drafter, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    folder = write_skills(tmp_path / "creators", "skill-creator")

    made = draft(skill_mode="self-gen", skill_creator_dir=str(folder))

    assert made.plan.skill_creator is not None
    assert made.folders[made.plan.skill_creator.bundle] == folder


def test_a_folder_that_cannot_be_placed_is_refused_with_every_reason(draft: Drafter, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    folder = write_skills(tmp_path / "skills", "two words")
    (folder / "two words" / "data").symlink_to("/etc/passwd")

    with pytest.raises(JobSpecError) as caught:
        draft(skill_mode="with-skill", skills_dir=str(folder))

    assert "'two words' is no name of a skill" in caught.value.message
    assert "two words/data is a link" in caught.value.message


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("missing", "it is no folder"),
        ("empty", "it has no skill"),
        ("skills/pdf", "name the folder that holds it, 'skills'"),
    ],
)
def test_what_is_no_folder_of_skills_is_refused(
    draft: Drafter, tmp_path: Path, place: str, reason: str
) -> None:
    write_task(tmp_path / "tasks" / "one")
    write_skills(tmp_path / "skills", "pdf")
    (tmp_path / "empty").mkdir()

    with pytest.raises(JobSpecError, match=reason):
        draft(skill_mode="with-skill", skills_dir=str(tmp_path / place))


def test_every_task_must_have_the_skills_a_job_asks_for(draft: Drafter, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "has", files={"environment/skills/pdf/SKILL.md": SKILL})
    write_task(tmp_path / "tasks" / "lacks")

    with pytest.raises(TaskError) as caught:
        draft(skill_mode="with-skill")

    assert caught.value.problems == (
        "lacks: environment/skills: missing, and --skills-dir names no other skills",
    )
    assert [task.name for task in draft(skill_mode="with-skill", include=["has"]).plan.tasks] == ["has"]
    assert len(draft().plan.tasks) == 2


@pytest.mark.parametrize(
    ("toml", "document", "reason"),
    [
        ('[[steps]]\nname = "a"\n', "", "steps: skills are not written for a task with several steps"),
        ("", "agents: {roles: {a: {agent: job}}}", "scenes: skills are not written for a task with roles"),
    ],
)
def test_skills_are_written_for_tasks_of_one_turn_only(
    draft: Drafter, tmp_path: Path, toml: str, document: str, reason: str
) -> None:
    folder = tmp_path / "tasks" / "one"
    write_task(folder, toml=toml, files={"steps/a/instruction.md": "Do a.\n"} if toml else {})
    if document:
        (folder / "task.toml").unlink()
        (folder / "instruction.md").unlink()
        (folder / "task.md").write_text(f'---\nschema_version: "1.3"\n{document}\n---\nDo it.\n')

    with pytest.raises(TaskError) as caught:
        draft(skill_mode="self-gen")

    assert caught.value.problems[0].startswith(f"one: {reason}")


def test_skills_that_a_scene_names_must_be_there_and_are_left_out_without_skills(
    draft: Drafter, tmp_path: Path
) -> None:
    folder = write_task(tmp_path / "tasks" / "one")
    (folder / "task.toml").unlink()
    (folder / "instruction.md").unlink()
    (folder / "task.md").write_text(
        '---\nschema_version: "1.3"\nagents: {roles: {a: {agent: job, skills_dir: /app/made}}}\n'
        "scenes: [{roles: [a], skills_dir: ../mine}]\n---\nDo it.\n"
    )
    agent = tmp_path / "solver.sh"
    agent.write_text("#!/bin/sh\n")

    with pytest.raises(TaskError) as caught:
        draft(skill_mode="with-skill", agent=str(agent))

    assert caught.value.problems == ("one: scenes[0].skills_dir: ../mine leaves the task folder",)
    assert draft(agent=str(agent)).warnings == (
        "one: agents.roles.a.skills_dir: placed with --skill-mode with-skill only",
        "one: scenes[0].skills_dir: placed with --skill-mode with-skill only",
    )
