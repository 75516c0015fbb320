"""Stage what a Dockerfile copies from above environment/, so that the task builds with environment/ as its context.

Some authors wrote their Dockerfiles for a context at the top of the task, or reach
there by `..`. Builders refuse both; a copy of the task, in which the files lie where
the build looks for them, does not.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from benchflow_client.tasks.converted import Converted
from benchflow_client.tasks.dockerfile import CopiedSource, copied_sources
from benchflow_client.tasks.findings import Findings, place, shown_name
from benchflow_client.tasks.text import peek_text

_CONTEXT, _FILE = "environment", "environment/Dockerfile"
_SECRET = frozenset({"tests", "verifier", "solution", "oracle", "steps"})
"""Folders of a task that its agent must never see."""


def copies_from_above(folder: Path) -> bool:
    """Return whether a task's Dockerfile copies files that stand in the task, but above its build context."""
    text = peek_text(folder / _FILE)
    return text is not None and any(_place(folder, item) is not None for item in copied_sources(text))


def stage_sources(folder: Path, findings: Findings) -> Converted | None:
    """Return the task with those files below environment/, or None when a problem was added.

    Never staged are tests and solutions: their place is not in an image the agent works in.
    """
    converted = Converted()
    converted.add_tree(folder, "", findings)
    text = peek_text(folder / _FILE) or ""
    lines = text.split("\n")
    for item in copied_sources(text):
        found = _place(folder, item)
        if found is None:
            continue
        where = place(_FILE, item.line)
        if _is_secret(found):
            findings.problem(
                f"{where}: {shown_name(item.source)!r} puts tests or solution into the image, where the agent reads them"
            )
            continue
        inside = found.removeprefix(f"{_CONTEXT}/")
        if inside == found:
            _stage(folder, found, converted, findings)
            findings.warning(
                f"{where}: {shown_name(item.source)!r} lies above environment/; the image is built with a copy of it"
            )
        _rewrite(lines, item, inside)
    converted.add_text(_FILE, "\n".join(lines))
    return None if findings.problems else converted


def _place(folder: Path, item: CopiedSource) -> str | None:
    """Return where in the task a source stands that the build would not find; None = it would, or nobody does."""
    source = item.source.lstrip("/")
    clamped = posixpath.normpath(f"/{source}").lstrip("/")
    is_reaching_up = ".." in source.split("/")
    if not clamped:  # a whole folder: the context itself, or all of the task
        return "." if is_reaching_up else None
    if os.path.lexists(folder / _CONTEXT / clamped):
        return f"{_CONTEXT}/{clamped}" if is_reaching_up else None
    above = posixpath.normpath(posixpath.join(_CONTEXT, source))
    for path in (above, clamped):
        if not path.startswith("..") and os.path.lexists(folder / path):
            return path
    return None


def _is_secret(path: str) -> bool:
    return path == "." or path.split("/")[0] in _SECRET


def _stage(folder: Path, path: str, converted: Converted, findings: Findings) -> None:
    if os.path.isdir(folder / path):
        converted.add_tree(folder / path, f"{_CONTEXT}/{path}", findings)
    else:
        converted.add_file(f"{_CONTEXT}/{path}", folder / path)


def _rewrite(lines: list[str], item: CopiedSource, path: str) -> None:
    """Put the path inside the context in place of the source, where the instruction names it first."""
    word = re.compile(rf"(?<![^\s\"'\[,]){re.escape(item.source)}(?=[\s\"',\]]|$)")
    for index in range(item.line - 1, min(item.last_line, len(lines))):
        changed, count = word.subn(lambda _: path, lines[index], count=1)
        if count:
            lines[index] = changed
            return
