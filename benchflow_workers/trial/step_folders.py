"""The folder of one step on this host: the task's tests with the step's laid over them, and its solution."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from benchflow_client.schema.task_steps import StepTable, step_config
from benchflow_client.tasks.steps import TEST_FOLDERS
from benchflow_workers.trial.records import TaskFolder

__all__ = ["step_folder"]

_SOLUTION_FOLDERS: Final = ("oracle", "solution")
"""Names the folder of a step's solution may have, the native one first."""


def step_folder(folder: TaskFolder, step: StepTable) -> TaskFolder:
    """Return the task as one step sees it, its folder made where it is not here yet.

    The folder stands beside the unpacked bundle, once for all trials of this host. A
    step's own file is preferred to the task's of the same name.
    """
    source = folder.path / "steps" / step.name
    place = folder.path.with_name(f"{folder.path.name}.steps") / step.name
    if not place.is_dir():
        _make(folder, source, place)
    task = folder.task
    instruction = (source / "instruction.md").read_bytes().removeprefix(b"\xef\xbb\xbf")
    return TaskFolder(
        task=task.model_copy(
            update={
                "instruction": instruction.decode("utf-8"),
                "config": step_config(task.config, step),
                "verifier_dir": _tests_name(folder) if (place / _tests_name(folder)).is_dir() else None,
                "oracle_dir": _solution_name(folder),
            }
        ),
        path=place,
        environment_digest=folder.environment_digest,
    )


def _tests_name(folder: TaskFolder) -> str:
    return folder.task.verifier_dir or "tests"


def _solution_name(folder: TaskFolder) -> str:
    return folder.task.oracle_dir or "solution"


def _make(folder: TaskFolder, source: Path, place: Path) -> None:
    """Put the folder together and move it to its place, whoever else does the same."""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        if folder.task.verifier_dir is not None:
            _lay(folder.path / folder.task.verifier_dir, made / _tests_name(folder))
        for name in TEST_FOLDERS:
            _lay(source / name, made / _tests_name(folder))
        for name in _SOLUTION_FOLDERS:
            _lay(source / name, made / _solution_name(folder))
        made.chmod(0o755)
        made.rename(place)
    except OSError:
        # Another trial was faster: it holds the same.
        if not place.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _lay(source: Path, target: Path) -> None:
    """Copy a folder over another; what has the same name is replaced, whatever its kind."""
    if not source.is_dir():
        return
    target.mkdir(exist_ok=True)
    shutil.copystat(source, target)
    for entry in source.iterdir():
        place = target / entry.name
        is_folder = entry.is_dir() and not entry.is_symlink()
        if place.is_symlink() or (place.exists() and not (is_folder and place.is_dir())):
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else os.unlink(place)
        if is_folder:
            _lay(entry, place)
        else:
            shutil.copy2(entry, place, follow_symlinks=False)
