"""A task of another format as the files of a folder this product reads; how it gets onto the disk.

A converter looks at a folder and says which files the converted one holds. Nothing
is written until somebody asks, and never over something that is there.
"""

from __future__ import annotations

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

DISK_FULL = (28, 122)
"""errno of a full disk and of a used-up quota."""


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
        """Add what a folder holds below `target`; links become copies of the files they point to.

        Args:
            source: A folder that has no obstacles to travelling, so every link in it stays inside the task.
            target: Folder of the converted task, without `/` at its ends.
            findings: Gets a problem for a link that points to no file.
            without: Top-level names of `source` that are left out.
        """
        left_out = frozenset(without)
        for entry in walk(source):
            if entry.path.partition("/")[0] in left_out or entry.kind == "folder":
                continue
            if os.path.isfile(source / entry.path):
                self.add_file(f"{target}/{entry.path}", source / entry.path)
            elif entry.kind == "link":
                findings.problem(
                    f"{shown_name(entry.path)}: a link to a folder, or to nothing, is not converted; "
                    "put a copy in its place"
                )

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
