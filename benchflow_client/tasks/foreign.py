"""Tasks of formats that are read through a converter: which there are, and how a folder of one becomes a task."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from benchflow_client.errors import TaskError
from benchflow_client.schema.task import Task
from benchflow_client.tasks.context import copies_from_above, stage_sources
from benchflow_client.tasks.converted import Converted, write_converted
from benchflow_client.tasks.fenced import convert_fenced_task, is_fenced_task
from benchflow_client.tasks.findings import Findings, shown_name
from benchflow_client.tasks.read import TASK_FILES, differences_from_toml, read_task
from benchflow_client.tasks.task_yaml import OLD_TASK_FILE, convert_old_task
from benchflow_client.tasks.tree import obstacles

Converter = Callable[[Path, Findings], Converted | None]
"""Says what the converted folder of a task holds; None when problems were added."""


def converter_of(folder: Path) -> Converter | None:
    """Return the converter of a task folder; None = the folder is read as it is, or is no task."""
    if os.path.lexists(folder / "task.md") and is_fenced_task(folder):
        return convert_fenced_task
    if any(os.path.lexists(folder / name) for name in TASK_FILES):
        return stage_sources if copies_from_above(folder) else None
    return convert_old_task if os.path.lexists(folder / OLD_TASK_FILE) else None


def convert(folder: Path, converter: Converter) -> tuple[Converted, tuple[str, ...]]:
    """Return what the converted folder of a task holds, and what its author should know.

    Raises:
        TaskError: It cannot be converted; `problems` lists every reason.
    """
    findings = Findings()
    for obstacle in obstacles(folder):
        findings.problem(obstacle)
    converted = None if findings.problems else converter(folder, findings)
    if converted is None:
        raise _refusal(folder, tuple(findings.problems))
    return converted, tuple(findings.warnings)


def read_foreign(folder: Path, converter: Converter, room: Path) -> tuple[Path, Task]:
    """Return the converted folder of a task, written below `room` unless it is there, and the task in it.

    Guarantees: equal folders become equal folders, so that their digests say the same.

    Args:
        folder: The task as its author wrote it.
        converter: What `converter_of` said.
        room: Folder for converted tasks.

    Raises:
        TaskError: It cannot be run as it is; `problems` lists every reason.
        StoreError: `room` cannot be written.
    """
    converted, warnings = convert(folder, converter)
    target = room / converted.digest() / folder.name
    if not target.is_dir():
        try:
            write_converted(converted, target)
        except TaskError:
            if not target.is_dir():  # nobody else was faster
                raise
    task = read_task(target)
    if os.path.lexists(folder / "task.toml") and (found := differences_from_toml(folder, task)):
        raise _refusal(folder, found)
    return target, task.model_copy(update={"warnings": (*warnings, *task.warnings)})


def _refusal(folder: Path, problems: tuple[str, ...]) -> TaskError:
    what = problems[0] if len(problems) == 1 else f"{len(problems)} problems"
    name = shown_name(folder.name)
    return TaskError(
        f"Task {name!r} cannot be read: {what}", problems=problems, hint="Correct what is listed."
    )
