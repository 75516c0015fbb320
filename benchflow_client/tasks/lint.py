"""Static checks of a readable task: things that run, and then do not do what their author meant."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from benchflow_client.schema.task import Task
from benchflow_client.tasks.findings import nearest, place, shown_name
from benchflow_client.tasks.scenes import document_of
from benchflow_client.tasks.text import peek_text
from benchflow_client.tasks.tree import walk

_STOPS_ON_ERROR = re.compile(r"\s*set\s+(?:-[a-z]*e[a-z]*\b|.*-o\s+errexit\b)|#!.*sh\s+-[a-z]*e")
_GOES_ON = re.compile(r"\s*set\s+\+[a-z]*e")
_LAST_STATUS = re.compile(r"\$(?:\?|\{\?\})")
_PLACEHOLDER = "[REPLACE:"


def lint(folder: Path, task: Task) -> tuple[str, ...]:
    """Return what an author should look at, one line each with file and line where known."""
    return (
        *_test_script(folder, task),
        *_solution(folder, task),
        *_scripts(folder),
        *_placeholders(folder, task),
        *_left_behind(folder),
        *_prompts(task),
        *(() if task.compose is None else task.compose.refused),
    )


def _prompts(task: Task) -> Iterator[str]:
    """Yield prompts of roles and scenes that are not declared: nobody is told them."""
    document, prompts = document_of(task), task.document.get("prompts", {})
    declared = {
        "role": list(document.agents.roles),
        "scene": [scene.name or "" for scene in document.scenes],
    }
    for kind, names in declared.items():
        for name in prompts.get(f"{kind}s", {}):
            if name not in names:
                yield f"task.md: ## {kind}:{name}: no such {kind} is declared{nearest(name, names)}"


def _test_script(folder: Path, task: Task) -> Iterator[str]:
    name = f"{task.verifier_dir}/test.sh"
    text = None if task.verifier_dir is None else peek_text(folder / name)
    if text is None or task.config.verifier.type != "test-script":
        return
    for line in _unreachable_checks(text):
        yield (
            f"{place(name, line)}: `$?` after `set -e`: when the command before fails, the script ends there "
            "and no reward is written; use `if command; then ...`"
        )
    if not any("reward" in content for content in _verifier_texts(folder, name, text)):
        yield f"{name}: never mentions a reward; it must write /logs/verifier/reward.txt (a number, 1 = solved)"


def _unreachable_checks(text: str) -> Iterator[int]:
    """Yield the lines that look at the last status where a failure has ended the script already."""
    stops = False
    for number, line in enumerate(text.splitlines(), start=1):
        if _STOPS_ON_ERROR.match(line):
            stops = True
        elif _GOES_ON.match(line):
            stops = False
        elif stops and _LAST_STATUS.search(line.partition(" #")[0]) and not _is_safe(line):
            yield number


def _is_safe(line: str) -> bool:
    """Return whether a line sees a failure although the shell ends on errors."""
    code = line.strip()
    return code.startswith(("#", "trap ")) or "||" in code.partition("$?")[0]


def _verifier_texts(folder: Path, name: str, text: str) -> Iterator[str]:
    """Yield the test script, then the files beside it, which it may run."""
    yield text
    below = folder / os.path.dirname(name)
    for entry in walk(below):
        if entry.kind == "file":
            yield peek_text(below / entry.path) or ""


def _solution(folder: Path, task: Task) -> Iterator[str]:
    if task.oracle_dir is None:
        yield "no solution: the oracle cannot show that the task is solvable; add solution/solve.sh"
    elif not os.path.isfile(folder / task.oracle_dir / "solve.sh"):
        yield f"{task.oracle_dir}/solve.sh: no such file: the oracle cannot show that the task is solvable"


def _scripts(folder: Path) -> Iterator[str]:
    """Yield scripts with Windows line ends, which the shell of a sandbox cannot run."""
    for entry in walk(folder):
        if entry.kind == "file" and entry.path.endswith(".sh"):
            text = peek_text(folder / entry.path)
            if text is not None and "\r\n" in text:
                yield f"{shown_name(entry.path)}: has Windows line ends (CRLF), which shells trip over; save it with LF"


def _placeholders(folder: Path, task: Task) -> Iterator[str]:
    """Yield files that still hold the marks of a template."""
    prompt = "task.md" if task.form == "task.md" else "instruction.md"
    scripts = [f"{task.verifier_dir}/test.sh", f"{task.oracle_dir}/solve.sh"]
    for name in (prompt, *scripts):
        if _PLACEHOLDER in (peek_text(folder / name) or ""):
            yield f"{name}: still holds {_PLACEHOLDER} ...]"


def _left_behind(folder: Path) -> Iterator[str]:
    """Yield repositories inside the build context, which no bundle holds."""
    for parent, names, _ in os.walk(folder / "environment"):
        if ".git" in names:
            path = os.path.relpath(os.path.join(parent, ".git"), folder)
            yield f"{shown_name(path)}: stays behind when the task travels; pack it as a tar, or clone it in the Dockerfile"
