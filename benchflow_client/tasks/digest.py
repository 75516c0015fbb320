"""The digest of a folder's content, by which images are built once per host."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from benchflow_client.errors import TaskError
from benchflow_client.tasks.findings import shown_name
from benchflow_client.tasks.tree import Entry, walk


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 (64 hex digits) of names, exec bits, contents and links below a folder.

    Times, owners and other permission bits do not count, and neither does what no
    bundle holds, so that a folder and its copy on a worker have one digest.

    Raises:
        TaskError: The folder or a file in it cannot be read, or is not a file, folder or link.
    """
    digest = hashlib.sha256()
    for entry in walk(folder):
        for part in (entry.kind, entry.path, _content(folder, entry)):
            data = os.fsencode(part)
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _content(folder: Path, entry: Entry) -> str:
    """Return what else identifies an entry: a link's target, a file's exec bit and digest."""
    if entry.kind in {"folder", "link"}:
        return entry.detail
    if entry.kind != "file":
        reason = entry.detail or "not a file, folder or link"
        raise TaskError(f"{shown_name(str(folder / entry.path))} cannot be read: {reason}.")
    try:
        with open(folder / entry.path, "rb") as file:
            bit = "x" if os.fstat(file.fileno()).st_mode & stat.S_IXUSR else "-"
            return bit + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TaskError(f"{shown_name(str(folder / entry.path))} cannot be read: {reason}.") from error
