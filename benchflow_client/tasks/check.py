"""`bench check`: everything that can be said about tasks without running them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.tasks.discover import discover
from benchflow_client.tasks.lint import lint


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What was found in one task folder.

    Attributes:
        folder: The folder.
        problems: Why it cannot be run; empty when it can.
        warnings: What its author should look at.
    """

    folder: Path
    problems: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the task's name."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, per task in order of name."""

    tasks: tuple[TaskReport, ...]

    @property
    def is_ok(self) -> bool:
        """Return whether every task can be run."""
        return not any(task.problems for task in self.tasks)


def check(path: Path) -> Report:
    """Check a task, or each task of a folder, by the same reader that runs use.

    Raises:
        TaskError: There is no task at all.
    """
    with tempfile.TemporaryDirectory(prefix="bench-check-") as room:
        found = discover(path, room=Path(room))
        readable = [
            TaskReport(entry.folder, (), (*entry.task.warnings, *lint(entry.folder, entry.task)))
            for entry in found.tasks
        ]
    broken = [TaskReport(entry.folder, entry.problems, ()) for entry in found.broken]
    return Report(tuple(sorted((*readable, *broken), key=lambda task: task.name)))
