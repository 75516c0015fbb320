"""Which skills a job places: folders it brings, and whether every task has those that are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchflow_client.errors import JobSpecError
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.skills import BUNDLED_SKILLS, NO_SKILL, PlannedSkills
from benchflow_client.schema.task import Task
from benchflow_client.tasks.bundle import digest_of
from benchflow_client.tasks.findings import shown_name
from benchflow_client.tasks.skills import bundled_skills, named_folders, skill_names, skill_problems

__all__ = ["plan_skills", "skill_reasons", "skill_warnings"]


def plan_skills(key: str, folder: str | None) -> tuple[PlannedSkills | None, dict[str, Path]]:
    """Return a folder of skills as a plan names it, and the folder by its digest.

    Args:
        key: Setting of the job, for messages.
        folder: The folder on this machine; None = none is asked for.

    Raises:
        JobSpecError: It cannot be used; lists every reason.
    """
    if folder is None:
        return None, {}
    path = Path(folder).expanduser()
    problems = skill_problems(path)
    if problems:
        raise JobSpecError(
            f"{key}: the folder {folder!r} cannot be used: {'; '.join(problems)}.",
            hint="A folder of skills has a folder for each, with a file SKILL.md.",
        )
    digest = digest_of(path)
    return PlannedSkills(bundle=digest, names=skill_names(path)), {digest: path}


def skill_reasons(task: Task, folder: Path, job: JobSpec) -> Iterator[str]:
    """Yield why a task has not the skills that a job asks for, one line each, the place first."""
    if job.skill_mode == "self-gen":
        if task.config.steps:
            yield "steps: skills are not written for a task with several steps"
        if any(task.document.get(key) for key in ("agents", "scenes", "user")):
            yield "scenes: skills are not written for a task with roles, scenes or a user"
    if job.skill_mode != "with-skill":
        return
    own = bundled_skills(folder)
    places = {} if own is None or job.skills_dir else {BUNDLED_SKILLS: own}
    named = named_folders(task)
    places |= {
        place: folder / path.removeprefix("./") for place, path in named.items() if not path.startswith("/")
    }
    for place, path in places.items():
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"{place}: {shown_name(named.get(place, BUNDLED_SKILLS))} leaves the task folder"
        else:
            yield from (f"{place}: {problem}" for problem in skill_problems(path))
    if own is None and not named and job.skills_dir is None:
        yield f"{BUNDLED_SKILLS}: missing, and --skills-dir names no other skills"


def skill_warnings(task: Task, job: JobSpec) -> Iterator[str]:
    """Yield what an author should know of skills that a job does not place."""
    if job.skill_mode == NO_SKILL:
        yield from (f"{place}: placed with --skill-mode with-skill only" for place in named_folders(task))
