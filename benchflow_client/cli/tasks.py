"""Commands for authors of tasks: new, check, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchflow_client.cli import render
from benchflow_client.report import Check
from benchflow_client.tasks.check import check as check_tasks
from benchflow_client.tasks.importing import import_tasks
from benchflow_client.tasks.scaffold import scaffold


def new(
    name: Annotated[str, Parameter(help="Name of the task: its folder.")],
    *,
    parent: Annotated[Path, Parameter(help="Folder to make it in.")] = Path("tasks"),
) -> int:
    """Make a task folder with working parts to change."""
    folder = scaffold(name, parent)
    render.render_notice(f"made {folder} · next: bench run {folder} --agent oracle --agent nop")
    return 0


def check(path: Annotated[Path, Parameter(help="A task, or a folder of tasks.")]) -> int:
    """Read tasks and list every problem, each with file and key; exit 1 when there is one."""
    report = check_tasks(path)
    findings = [
        *(Check("FAIL", task.name, text) for task in report.tasks for text in task.problems),
        *(Check("WARN", task.name, text) for task in report.tasks for text in task.warnings),
    ]
    fine = sum(1 for task in report.tasks if not task.problems)
    render.render_doctor([
        *findings,
        Check("PASS" if report.is_ok else "WARN", "tasks", f"{fine} of {len(report.tasks)} can be run"),
    ])
    return 0 if report.is_ok else 1


def import_(
    source: Annotated[Path, Parameter(help="A task of another format, or a folder of them.")],
    destination: Annotated[Path, Parameter(help="Its new folder; of a folder of tasks, where to make them.")],
) -> int:
    """Write tasks of other formats as folders that are read as they are; nothing is overwritten."""
    imported = import_tasks(source, destination)
    findings = [
        *(Check("FAIL", task.name, text) for task in imported for text in task.problems),
        *(Check("WARN", task.name, text) for task in imported for text in task.warnings),
        *(
            Check("PASS", task.name, f"written to {task.folder}")
            for task in imported
            if task.folder is not None
        ),
    ]
    render.render_doctor(findings)
    return 1 if any(task.problems for task in imported) else 0
