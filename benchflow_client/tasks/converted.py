"""A task of another format as the files of a folder this product reads; how it gets onto the disk.

A converter looks at a folder and says which files the converted one holds. Nothing
is written until somebody asks, and never over something that is there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_client.errors import StoreError, StoreFullError, TaskError
from benchflow_client.tasks.findings import Findings, shown_name
from benchflow_client.tasks.tree import walk

LINK_LIMIT = 1000
"""Most links to folders that are followed for one task; real ones have a few."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk and a used-up quota answer."""


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    """One file of a converted folder.

    Attributes:
        content: Its bytes; None = those of `source`.
        source: The file of the original it is copied from; None = it is new.
        is_executable: Whether it may be executed.
    """

    content: bytes | None = None
    source: Path | None = None
    is_executable: bool = False

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            OSError: The original cannot be read.
        """
        if self.content is not None:
            return self.content
        assert self.source is not None
        return self.source.read_bytes()


@dataclass(slots=True)
class Converted:
    """What a converted folder holds, by path relative to it, with `/`; paths never leave it."""

    files: dict[str, ConvertedFile] = field(default_factory=dict)

    def add_text(self, path: str, text: str, *, is_executable: bool = False) -> None:
        """Add a file of new text."""
        data = text.encode("utf-8", "replace")
        self.files[path] = ConvertedFile(data, is_executable=is_executable)

    def add_file(self, path: str, source: Path) -> None:
        """Add a copy of a file, its right to be executed kept."""
        self.files[path] = ConvertedFile(source=source, is_executable=os.access(source, os.X_OK))

    def add_tree(self, source: Path, target: str, findings: Findings, *, without: Iterable[str] = ()) -> None:
        """Add what a folder holds below `target`; in place of links stand copies of what they point to.

        Args:
            source: A folder that has no obstacles to travelling, so every link in it stays inside the task.
            target: Folder of the converted task, without `/` at its ends; empty = the task itself.
            findings: Gets a problem for a link that points to nothing, or to a folder it is in.
            without: Top-level names of `source` that are left out, and links into them.
        """
        _Copier(self, findings, frozenset(without)).copy(source, target, ())

    def digest(self) -> str:
        """Return a SHA-256 of names, rights and contents.

        Raises:
            TaskError: A file of the original cannot be read.
        """
        total = hashlib.sha256()
        for path in sorted(self.files):
            file = self.files[path]
            try:
                content = hashlib.sha256(file.read()).hexdigest()
            except OSError as error:
                raise _unreadable(path, error) from error
            total.update(json.dumps([path, file.is_executable, content]).encode() + b"\n")
        return total.hexdigest()


class _Copier:
    """Adds what a folder holds; counts the links it opens, since links to links multiply."""

    def __init__(self, converted: Converted, findings: Findings, left_out: frozenset[str]) -> None:
        self._converted = converted
        self._findings = findings
        self._left_out = left_out
        self._opened = 0

    def copy(self, source: Path, target: str, within: tuple[str, ...]) -> None:
        """Add a folder; `within` are the real folders it stands in by way of links."""
        root = os.path.realpath(source)
        for entry in walk(source):
            path, real = source / entry.path, os.path.realpath(source / entry.path)
            if entry.kind == "folder" or (not within and self._is_left_out(entry.path, real, root)):
                continue
            place = f"{target}/{entry.path}" if target else entry.path
            here = (*within, os.path.realpath(path.parent))
            if os.path.isfile(path):
                self._converted.add_file(place, path)
            elif os.path.isdir(path) and self._opened < LINK_LIMIT and not _holds_any(real, here):
                self._opened += 1
                self.copy(Path(real), place, here)
            elif entry.kind == "link":
                self._findings.problem(
                    f"{shown_name(entry.path)}: the link points to nothing, to a folder it is in, or there are too "
                    "many like it; remove it"
                )

    def _is_left_out(self, path: str, real: str, root: str) -> bool:
        """Return whether a path, or what it points to, has a top-level name that is left out."""
        return not self._left_out.isdisjoint(
            name.partition("/")[0] for name in (path, os.path.relpath(real, root))
        )


def _holds_any(folder: str, others: tuple[str, ...]) -> bool:
    """Return whether a folder is one of the others, or holds one."""
    return any(f"{other}/".startswith(f"{folder}/") for other in others)


def write_converted(converted: Converted, folder: Path) -> None:
    """Write a converted task; the folder appears whole or not at all, and replaces nothing.

    Raises:
        TaskError: The folder exists already, or a file of the original cannot be read.
        StoreError: It cannot be written.
    """
    if os.path.lexists(folder):
        raise TaskError(f"{shown_name(str(folder))!r} exists already.", hint="Choose another place.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".convert-"))
        try:
            draft.chmod(0o755)
            _write_files(converted.files, draft)
            os.rename(draft, folder)  # fails where somebody else was faster with a folder that holds files
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        if os.path.isdir(folder) and os.listdir(folder):
            raise TaskError(
                f"{shown_name(str(folder))!r} exists already.", hint="Choose another place."
            ) from error
        kind = StoreFullError if error.errno in DISK_FULL else StoreError
        raise kind(f"{shown_name(str(folder))!r} cannot be written: {error.strerror or error}.") from error


def _write_files(files: Mapping[str, ConvertedFile], draft: Path) -> None:
    for path, file in files.items():
        try:
            content = file.read()
        except OSError as error:
            raise _unreadable(path, error) from error
        target = draft / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if file.is_executable else 0o644)


def _unreadable(path: str, error: OSError) -> TaskError:
    return TaskError(
        f"The file that becomes {shown_name(path)!r} cannot be read: {error.strerror or error}.",
        hint="Give yourself the right to read it.",
    )
