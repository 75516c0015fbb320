"""Read folders of skills: which skills are in one, and why it cannot be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow_client.schema.skills import BUNDLED_SKILLS, SKILL_FILE
from benchflow_client.schema.task import Task
from benchflow_client.tasks.findings import shown_name
from benchflow_client.tasks.scenes import document_of
from benchflow_client.tasks.tree import walk

__all__ = ["bundled_skills", "named_folders", "skill_names", "skill_problems"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_SHOWN: Final = 20


def skill_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the skills in a folder, in order: its folders that have a `SKILL.md`."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(child.name for child in folder.iterdir() if (child / SKILL_FILE).is_file()))


def skill_problems(folder: Path) -> tuple[str, ...]:
    """Return why a folder of skills cannot be placed in a sandbox, one line each; empty when it can.

    Links are refused: what they point to would not be where the skills are.
    """
    if not folder.is_dir():
        return ("it is no folder",)
    if (folder / SKILL_FILE).is_file():
        return (f"it is a skill itself; name the folder that holds it, {shown_name(folder.parent.name)!r}",)
    found = tuple(_problems(folder))
    return (
        (*found[:_MOST_SHOWN], f"and {len(found) - _MOST_SHOWN} more") if len(found) > _MOST_SHOWN else found
    )


def _problems(folder: Path) -> Iterator[str]:
    names = skill_names(folder)
    if not names:
        yield f"it has no skill: no folder with a {SKILL_FILE}"
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{shown_name(name)!r} is no name of a skill: letters, digits, '.', '_' and '-'"
    for entry in walk(folder):
        if entry.kind not in {"file", "folder"}:
            what = "a link; put a copy in its place" if entry.kind == "link" else "no file and no folder"
            yield f"{shown_name(entry.path)} is {what}"


def bundled_skills(task_folder: Path) -> Path | None:
    """Return the folder of a task's own skills, a link followed; None = it has none."""
    folder = task_folder / BUNDLED_SKILLS
    return folder.resolve() if folder.is_dir() else None


def named_folders(task: Task) -> dict[str, str]:
    """Return the folders of skills that roles and scenes of a task name, by where they name them.

    A path from `/` is a folder in the sandbox, any other one of the task's own.
    """
    document = document_of(task)
    roles = {
        f"agents.roles.{name}.skills_dir": role.skills_dir for name, role in document.agents.roles.items()
    }
    scenes = {f"scenes[{index}].skills_dir": scene.skills_dir for index, scene in enumerate(document.scenes)}
    return {place: folder for place, folder in (roles | scenes).items() if folder}
