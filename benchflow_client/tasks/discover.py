"""Find the tasks of a folder, and choose among them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from benchflow_client.errors import TaskError
from benchflow_client.schema.task import Task
from benchflow_client.tasks.findings import shown_name, suggestion
from benchflow_client.tasks.foreign import converter_of, read_foreign
from benchflow_client.tasks.read import TASK_FILES, read_task
from benchflow_client.tasks.task_yaml import OLD_TASK_FILE

_MOST_NAMES = 10
"""Names listed in a message; more do not help."""

_MOST_LOOKED_INTO = 1000
"""Sub-folders looked into for a hint."""


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task that can be read, and where it stands: its converted copy, where its format is another."""

    folder: Path
    task: Task


@dataclass(frozen=True, slots=True)
class BrokenTask:
    """A task folder that cannot be read, and every reason."""

    folder: Path
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the folder, fit for one line of text."""
        return shown_name(self.folder.name)


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a folder holds, each in order of name; at least one task, readable or not."""

    tasks: tuple[FoundTask, ...]
    broken: tuple[BrokenTask, ...]


def discover(root: Path, *, room: Path) -> Discovery:
    """Read the task a folder is, or each task among its direct sub-folders.

    Hidden folders are passed over. A broken task never hides the others.

    Args:
        root: A task, or a folder of tasks.
        room: Folder for the converted copies of tasks of other formats.

    Raises:
        TaskError: There is no such folder, or no task in it; the hint says where
            tasks were seen instead.
        StoreError: A converted task cannot be written.
    """
    root = Path(os.path.abspath(root))
    folders = [root] if is_task(root) else [folder for folder in subfolders(root) if is_task(folder)]
    if not folders:
        raise _nothing_found(root)
    tasks, broken = [], []
    for folder in folders:
        try:
            tasks.append(_found(folder, room))
        except TaskError as error:
            broken.append(BrokenTask(folder, error.problems or (error.message,)))
    return Discovery(tuple(tasks), tuple(broken))


def is_task(folder: Path) -> bool:
    """Return whether a folder is a task, readable or not."""
    return any(os.path.lexists(folder / name) for name in (*TASK_FILES, OLD_TASK_FILE))


def _found(folder: Path, room: Path) -> FoundTask:
    converter = converter_of(folder)
    if converter is None:
        return FoundTask(folder, read_task(folder))
    return FoundTask(*read_foreign(folder, converter, room))


def subfolders(root: Path) -> list[Path]:
    """Return the folders in a folder, in order of name; links to folders count.

    Raises:
        TaskError: It is not a folder, or cannot be listed.
    """
    try:
        names = sorted(os.listdir(root), key=os.fsencode)
    except FileNotFoundError as error:
        raise TaskError(f"There is no folder {shown_name(str(root))!r}.", hint=_similar(root)) from error
    except NotADirectoryError as error:
        hint = "Give the folder it stands in." if root.name in TASK_FILES else "Give a folder of tasks."
        raise TaskError(f"{shown_name(str(root))!r} is a file, not a folder of tasks.", hint=hint) from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{shown_name(str(root))!r} cannot be listed: {error}.") from error
    return [root / name for name in names if not name.startswith(".") and os.path.isdir(root / name)]


def _similar(root: Path) -> str:
    """Return a hint that names a folder of nearly the same name."""
    try:
        siblings = [name for name in os.listdir(root.parent) if os.path.isdir(root.parent / name)]
    except OSError:
        return f"There is no {shown_name(str(root.parent))!r} either."
    return suggestion(root.name, siblings).rstrip() or "Check the path."


def _nothing_found(root: Path) -> TaskError:
    """Say that a folder holds no task, and where tasks were seen."""
    deeper = [
        folder
        for folder in subfolders(root)[:_MOST_LOOKED_INTO]
        if any(is_task(child) for child in _quietly_listed(folder)[:_MOST_LOOKED_INTO])
    ]
    hint = "A task is a folder with a task.md, or with a task.toml and an instruction.md. `bench new NAME` makes one."
    if deeper:
        names = ", ".join(shown_name(str(folder)) for folder in deeper[:_MOST_NAMES])
        hint = f"Tasks were seen one level deeper; give one of: {names}."
    return TaskError(f"There is no task in {shown_name(str(root))!r}.", hint=hint)


def _quietly_listed(folder: Path) -> list[Path]:
    try:
        return subfolders(folder)
    except TaskError:
        return []


def select(
    tasks: Sequence[FoundTask],
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    limit: int | None = None,
) -> tuple[FoundTask, ...]:
    """Return the tasks whose names match, in the order given.

    Args:
        tasks: What to choose from.
        include: Globs (`*`, `?`, `[...]`, case counts), one of which must match; empty = all.
        exclude: Globs of which none may match.
        limit: At most so many; None = all.

    Raises:
        TaskError: Nothing is left; the message names what there is.
    """
    chosen = tuple(found for found in tasks if is_selected(found.task.name, include=include, exclude=exclude))
    if tasks and not chosen:
        raise _nothing_left([found.task.name for found in tasks], include, exclude)
    return chosen[:limit]


def is_selected(name: str, *, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether a job with these globs takes a task of that name, readable or not."""
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _nothing_left(names: list[str], include: Sequence[str], exclude: Sequence[str]) -> TaskError:
    asked = [
        f"{word} {glob!r}" for word, globs in (("include", include), ("exclude", exclude)) for glob in globs
    ]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    shown = ", ".join(shown_name(name) for name in names[:_MOST_NAMES])
    close = next((hint for glob in include if (hint := suggestion(glob, names))), "")
    return TaskError(f"No task is left after {', '.join(asked)}.", hint=f"{close}There are: {shown}{more}.")
