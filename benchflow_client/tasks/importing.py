"""`bench import`: write the converted folders of tasks of other formats, for their authors to keep."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.errors import TaskError
from benchflow_client.tasks.converted import write_converted
from benchflow_client.tasks.discover import is_task, subfolders
from benchflow_client.tasks.findings import shown_name
from benchflow_client.tasks.foreign import Converter, convert, converter_of


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one folder.

    Attributes:
        name: Name of the task.
        folder: The new folder; None = none was written.
        warnings: What its author should look at.
        problems: Why it was not converted; empty when it was, or needs no conversion.
    """

    name: str
    folder: Path | None
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def import_tasks(source: Path, target: Path) -> tuple[Imported, ...]:
    """Convert the task a folder is, or each task in it; nothing that exists is changed.

    Args:
        source: A task, or a folder of tasks.
        target: The new folder of the task; of a folder of tasks, where their new folders are made.

    Returns:
        One entry per task in order of name. A task that is read as it is, or that cannot be
        converted, writes nothing.

    Raises:
        TaskError: There is no task in `source`, or a folder that would be written exists
            already; then nothing is written.
        StoreError: `target` cannot be written.
    """
    source = Path(os.path.abspath(source))
    places = _places(source, target)
    taken = [place for folder, place in places.items() if converter_of(folder) and os.path.lexists(place)]
    if taken:
        raise TaskError(
            f"{shown_name(str(taken[0]))!r} exists already.",
            problems=tuple(f"{shown_name(str(place))}: exists already" for place in taken),
            hint="Nothing was written. Choose another place, or remove what is there.",
        )
    return tuple(_imported(folder, place) for folder, place in places.items())


def _places(source: Path, target: Path) -> dict[Path, Path]:
    """Return where each task of a folder goes."""
    if is_task(source):
        return {source: target}
    folders = [folder for folder in subfolders(source) if is_task(folder)]
    if not folders:
        raise TaskError(
            f"There is no task in {shown_name(str(source))!r}.",
            hint="Give a task, or a folder whose direct sub-folders are tasks.",
        )
    return {folder: target / folder.name for folder in folders}


def _imported(folder: Path, place: Path) -> Imported:
    converter: Converter | None = converter_of(folder)
    name = shown_name(folder.name)
    if converter is None:
        return Imported(name, None, warnings=("is read as it is; nothing was written",))
    try:
        converted, warnings = convert(folder, converter)
    except TaskError as error:
        return Imported(name, None, problems=error.problems or (error.message,))
    write_converted(converted, place)
    return Imported(name, place, warnings=warnings)
