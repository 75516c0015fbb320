"""The local side of every store: whole writes, safe reads of folders, errors of the disk."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchflow_client.errors import StoreError, StoreFullError
from benchflow_client.store.keys import LONGEST_KEY_BYTES, TEMP_PREFIX, file_name_key, is_safe

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
"""Bytes moved at once; larger gains nothing measurable on a local disk."""

_PREFIX_ROOM_BYTES = 128
"""Kept free in every key for what a store's own address puts before it."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_EXECUTE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a copy keeps of its original besides the bytes."""

    size: int  # bytes
    modified_ns: int  # nanoseconds since the epoch
    is_executable: bool


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A regular file found below a folder."""

    relative: str  # its place below the folder, as a part of a key
    path: Path


def disk_error(error: OSError, action: str, path: Path) -> StoreError:
    """Return the error to raise for an operating system error.

    Args:
        error: What the system said.
        action: What was tried, e.g. ``"write 'job/spec.json'"``.
        path: The file or folder it was tried on.
    """
    reason = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return StoreFullError(
            f"Cannot {action}: no space left on the disk of {path} ({reason}).",
            hint="Free space there and run the job again; everything stored before is whole.",
        )
    if error.errno in _FORBIDDEN:
        return StoreError(
            f"Cannot {action}: {path} may not be used by user {os.geteuid()} ({reason}).",
            hint="Give that user read and write access to the folder, or choose another store.",
        )
    return StoreError(f"Cannot {action}: {path}: {reason}.", hint="Check the disk, or choose another store.")


@contextmanager
def disk_errors(action: str, path: Path) -> Generator[None]:
    """Turn operating system errors of the block into `StoreError`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, action, path) from error


@contextmanager
def temp_beside(target: Path) -> Generator[tuple[Path, BinaryIO]]:
    """Open a new hidden file in the folder of `target`; it is gone when the block ends.

    The folder is made when it is missing. The file is not synced to the disk.
    """
    temp = target.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"
    stream = _open_new(temp)
    try:
        with stream:
            yield temp, stream
    finally:
        temp.unlink(missing_ok=True)


def copy_whole(source: BinaryIO, target: Path, facts: FileFacts | None = None) -> int:
    """Write a stream to a file that appears whole, replacing what is there.

    Args:
        source: What to write.
        target: Where; a symlink there is replaced, not followed.
        facts: Time and permission to execute to keep; None = as written.

    Returns:
        Number of bytes written.
    """
    with temp_beside(target) as (temp, stream):
        shutil.copyfileobj(source, stream, CHUNK_BYTES)
        size = stream.tell()
        stream.close()
        if facts is not None:
            keep_facts(temp, facts)
        temp.replace(target)
    return size


def keep_facts(path: Path, facts: FileFacts) -> None:
    """Give a copy its original's time, and permission to execute where it had it."""
    if facts.is_executable:
        mode = path.stat().st_mode
        path.chmod(stat.S_IMODE(mode | (mode & 0o444) >> 2))
    os.utime(path, ns=(facts.modified_ns, facts.modified_ns))


@contextmanager
def open_source(path: Path) -> Generator[tuple[BinaryIO, FileFacts]]:
    """Open a regular file for reading, never through a symlink.

    Raises:
        StoreError: It is missing, unreadable, or not a regular file.
    """
    with disk_errors("read a file to store", path):
        # O_NONBLOCK: opening a named pipe without a writer would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise StoreError(f"Cannot store {path}: it is not a regular file.", hint="Store a file instead.")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream, facts_of(found)


def facts_of(found: os.stat_result) -> FileFacts:
    """Return what a copy of the file keeps."""
    return FileFacts(found.st_size, found.st_mtime_ns, bool(found.st_mode & _EXECUTE))


def regular_files(folder: Path, *, prefix: str = "") -> Iterator[SourceFile]:
    """Yield every regular file below a folder; symlinks and devices are left out.

    So is, with a line in the log, what would have too long a key below `prefix`.

    Raises:
        StoreError: The folder or one below it cannot be read.
    """
    with disk_errors("read a folder to store", folder):
        for source in _walk(folder):
            if len(os.fsencode(prefix + source.relative)) + _PREFIX_ROOM_BYTES > LONGEST_KEY_BYTES:
                logger.warning("not stored, its path is too long: %.200s...", source.relative)
            else:
                yield source


def place_below(folder: Path, relative: str) -> Path | None:
    """Return where a document from elsewhere lands below a folder; None = nowhere safe.

    Refused are paths that climb out and paths through a symlink that leads out.
    """
    if not is_safe(relative):
        return None
    target = folder / relative
    root = os.path.realpath(folder)
    parent = os.path.realpath(target.parent)
    return target if is_within(parent, root) else None


def is_within(path: str, root: str) -> bool:
    """Return whether a resolved path is a resolved folder or below it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def is_current(target: Path, facts: FileFacts) -> bool:
    """Return whether a file is there already with the same size and no older time."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        return False
    is_same_size = stat.S_ISREG(found.st_mode) and found.st_size == facts.size
    return is_same_size and found.st_mtime_ns >= facts.modified_ns


def _open_new(temp: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temp, flags, 0o666)
    except FileNotFoundError:
        temp.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temp, flags, 0o666)
    return os.fdopen(descriptor, "wb")


def _walk(top: Path) -> Iterator[SourceFile]:
    """Yield regular files of a tree of any depth."""
    left = [(top, "")]
    while left:
        folder, below = left.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(TEMP_PREFIX):
                    continue
                relative = below + file_name_key(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    left.append((Path(entry.path), f"{relative}/"))
                elif entry.is_file(follow_symlinks=False):
                    yield SourceFile(relative, Path(entry.path))
