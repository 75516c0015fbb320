"""Walk a task folder in one fixed order, never following a link, and know what may travel.

Bundles and digests are made from this walk, so that the folder on the author's
machine and its copy on a worker are the same tree.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchflow_client.tasks.findings import is_utf8, shown_name

LEFT_OUT = frozenset({".git", "__pycache__", ".DS_Store"})
"""Names that never belong to a task: version control, caches, desktop files."""

ENTRY_LIMIT = 200_000
"""Most files, folders and links of one task; real ones have tens to thousands."""

_MOST_SHOWN = 20
"""Problems of one folder that are listed; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing below a folder.

    Attributes:
        path: Path relative to the folder, with `/`.
        kind: `special` is a device, socket or pipe; `unreadable` a folder that cannot be listed.
        detail: A link's target, or why a folder cannot be listed.
    """

    path: str
    kind: Literal["folder", "file", "link", "special", "unreadable"]
    detail: str = ""


def walk(folder: Path) -> Iterator[Entry]:
    """Yield everything below a folder, parents first, siblings in order of their bytes.

    Never raises for what is on disk: a folder that cannot be listed is an entry.
    """
    root, pending = os.fspath(folder), [""]
    while pending:
        parent = pending.pop()
        try:
            with os.scandir(os.path.join(root, parent)) as found:
                children = sorted(found, key=lambda child: os.fsencode(child.name), reverse=True)
        except OSError as error:
            yield Entry(parent or ".", "unreadable", error.strerror or str(error))
            continue
        if parent:
            yield Entry(parent, "folder")
        yield from _plain_children(parent, children)
        pending += [_join(parent, child.name) for child in children if _is_folder(child)]


def _plain_children(parent: str, children: list[os.DirEntry[str]]) -> Iterator[Entry]:
    """Yield the children that are not folders."""
    for child in reversed(children):
        if child.name in LEFT_OUT or _is_folder(child):
            continue
        path = _join(parent, child.name)
        if child.is_symlink():
            yield _link(path, child.path)
        else:
            yield Entry(path, "file" if child.is_file(follow_symlinks=False) else "special")


def _is_folder(child: os.DirEntry[str]) -> bool:
    return child.name not in LEFT_OUT and child.is_dir(follow_symlinks=False)


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _link(path: str, full_path: str) -> Entry:
    try:
        return Entry(path, "link", os.readlink(full_path))
    except OSError as error:
        return Entry(path, "unreadable", error.strerror or str(error))


def obstacles(folder: Path) -> tuple[str, ...]:
    """Return why a folder cannot travel to a worker, one line per reason; empty when it can.

    Refused are links that leave the folder (their target would be uploaded, or be
    missing), devices, sockets and pipes, names that are not UTF-8, and what cannot be listed.
    """
    root = os.path.realpath(folder)
    found = []
    for count, entry in enumerate(walk(folder)):
        if count == ENTRY_LIMIT:
            found.append(f"more than {ENTRY_LIMIT} files; a task folder is not the place for a data set")
            break
        if reason := _obstacle(root, entry):
            found.append(f"{shown_name(entry.path)}: {reason}")
    if len(found) > _MOST_SHOWN:
        return (*found[:_MOST_SHOWN], f"and {len(found) - _MOST_SHOWN} more of this kind")
    return tuple(found)


def _obstacle(root: str, entry: Entry) -> str:
    if not is_utf8(entry.path):
        return "the name is not UTF-8"
    if entry.kind == "special":
        return "a device, socket or pipe cannot be copied"
    if entry.kind == "unreadable":
        return f"cannot be read: {entry.detail}"
    if entry.kind == "link" and _leaves(root, entry):
        return f"the link leaves the task folder (it points to {shown_name(entry.detail)}); copy what it points to"
    return ""


def _leaves(root: str, link: Entry) -> bool:
    """Return whether a link points outside, by its text or through other links."""
    if not stays_inside(link.path, link.detail) or not is_utf8(link.detail):
        return True
    real = os.path.realpath(os.path.join(root, link.path))
    return real != root and not real.startswith(root.rstrip("/") + "/")


def stays_inside(path: str, target: str) -> bool:
    """Return whether a link's text, read at its place, names something below the folder."""
    if not target or target.startswith("/"):
        return False
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return reached != ".." and not reached.startswith("../")
