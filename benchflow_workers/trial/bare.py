"""A task without its skills: they are in no image, and no Dockerfile copies them."""

from __future__ import annotations

import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchflow_client.schema.compose import Build
from benchflow_client.schema.ids import short_digest
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.skills import BUNDLED_SKILLS
from benchflow_client.schema.task import Task
from benchflow_client.tasks.digest import folder_digest
from benchflow_client.tasks.dockerfile import without_sources
from benchflow_client.tasks.skills import named_folders
from benchflow_workers.trial.records import TaskFolder

__all__ = ["without_skills"]

_ENVIRONMENT: Final = "environment"
_KNOWN: Final = 4096
"""Copies remembered by one process."""


def without_skills(folder: TaskFolder, plan: Plan) -> TaskFolder:
    """Return a task as a job builds its image: its own skills only where the job gives agents those.

    The copy stands beside the unpacked bundle, once for all trials of this host.
    """
    with_own = plan.spec.skill_mode == "with-skill"
    removed: tuple[str, ...] = () if with_own and plan.skills is None else (BUNDLED_SKILLS,)
    if not with_own:
        named = named_folders(folder.task).values()
        removed += tuple(posixpath.normpath(path) for path in named if not path.startswith("/"))
    removed = tuple(path for path in dict.fromkeys(removed) if _is_built(folder, path))
    if not removed:
        return folder
    place = folder.path.with_name(f"{folder.path.name}.without-{short_digest(*removed)}")
    if not place.is_dir():
        _make(folder, place, removed)
    return replace(folder, path=place, environment_digest=_digest(place))


def _is_built(folder: TaskFolder, path: str) -> bool:
    """Return whether a path of the task could get into its image."""
    return path.startswith(f"{_ENVIRONMENT}/") and os.path.lexists(folder.path / path)


@lru_cache(maxsize=_KNOWN)
def _digest(place: Path) -> str:
    return folder_digest(place / _ENVIRONMENT)


def _make(folder: TaskFolder, place: Path, removed: tuple[str, ...]) -> None:
    """Make the copy and move it to its place, whoever else does the same."""
    room = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    made = room / "task"
    try:
        shutil.copytree(folder.path, made, symlinks=True, copy_function=_share)
        for path in removed:
            _remove(made / path)
        for file, context in _dockerfiles(folder.task):
            _strip(folder.path / context, made / context, made / file)
        made.rename(place)
    except OSError:
        if not place.is_dir():  # else another trial was faster: it holds the same
            raise
    finally:
        shutil.rmtree(room, ignore_errors=True)


def _share(source: str, target: str) -> None:
    """Give a file a second name, as nothing of a bundle is changed in place; copy it where there is none."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _dockerfiles(task: Task) -> Iterator[tuple[str, str]]:
    """Yield every Dockerfile of the environment with the folder its sources are relative to."""
    found = {(f"{_ENVIRONMENT}/Dockerfile", _ENVIRONMENT)}
    services = {} if task.compose is None else task.compose.data["services"]
    for service in services.values():
        if service.get("build"):
            build = Build.model_validate(service["build"])
            context = posixpath.normpath(posixpath.join(_ENVIRONMENT, build.context))
            found.add((posixpath.normpath(posixpath.join(context, build.dockerfile)), context))
    yield from sorted(found)


def _strip(before: Path, after: Path, file: Path) -> None:
    """Write a Dockerfile anew where it copies what is not there any more."""
    if not file.is_file() or file.is_symlink():
        return

    def is_gone(source: str) -> bool:
        return _is_there(before, source) and not _is_there(after, source)

    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    stripped = without_sources(text, is_gone)
    if stripped != text:
        file.unlink()  # it may be the bundle's own file
        file.write_text(stripped, encoding="utf-8", errors="surrogateescape")


def _is_there(context: Path, source: str) -> bool:
    inside = posixpath.normpath(f"/{source}").lstrip("/")
    if not inside or "\0" in inside:
        return True
    if any(sign in inside for sign in "*?["):
        return any(True for _ in context.glob(inside))
    return (context / inside).exists()
