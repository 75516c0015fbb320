"""Read text from files whose content nobody has checked: bounded, never blocking, never raising."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from benchflow_client.tasks.findings import Findings, place, shown_name

CONFIG_LIMIT_BYTES = 1 << 20
"""Largest task.toml: real ones are a few kB."""

PROMPT_LIMIT_BYTES = 16 << 20
"""Largest prompt: real ones reach hundreds of kB."""

_BOM = b"\xef\xbb\xbf"


def read_text(folder: Path, name: str, findings: Findings, *, limit_bytes: int) -> str | None:
    """Return a text file of a task folder, a byte order mark dropped.

    Args:
        folder: The task folder.
        name: The file, relative to it.
        findings: Gets a problem when the file cannot be read as text.
        limit_bytes: Largest file that is read.

    Returns:
        None when a problem was added.
    """
    try:
        data = _read_bytes(folder / name, limit_bytes)
    except OSError as error:
        findings.problem(f"{shown_name(name)}: cannot be read: {error.strerror or error}")
        return None
    if data is None:
        findings.problem(f"{shown_name(name)}: expected a regular file of at most {limit_bytes >> 20} MiB")
        return None
    data = data.removeprefix(_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        findings.problem(
            f"{place(name, line)}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        )
        return None


def peek_text(path: Path, *, limit_bytes: int = CONFIG_LIMIT_BYTES) -> str | None:
    """Return the text of a file with undecodable bytes replaced; None = no such readable file."""
    try:
        data = _read_bytes(path, limit_bytes)
    except (OSError, ValueError):
        return None
    return None if data is None else data.decode("utf-8", "replace")


def _read_bytes(path: Path, limit_bytes: int) -> bytes | None:
    """Return the content; None = not a regular file or too large. Never blocks on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
            return None
        return file.read(status.st_size)
