"""A parsed task file before any key has a meaning: plain data, and the line of every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property
from typing import Any

from benchflow_client.tasks.findings import place, shown_value

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of the file to one value."""

DEPTH_LIMIT = 32
"""Deepest nesting of a task file; real ones use five levels."""


class NotPlainError(Exception):
    """The data nests deeper than any task file needs."""


@dataclass(frozen=True)
class Raw:
    """One parsed file.

    Attributes:
        file: Its name relative to the task folder.
        data: Its top-level table; only text, numbers, booleans, None, lists and tables.
        find_lines: Computes the line of every key; called only when a line is to be shown.
        written: Paths that were renamed while reading, mapped to how the author wrote them.
    """

    file: str
    data: dict[str, Any]
    find_lines: Callable[[], Mapping[KeyPath, int]]
    written: Mapping[KeyPath, KeyPath]

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        return self.find_lines()

    def as_written(self, path: KeyPath) -> KeyPath:
        """Return a path in the author's spelling."""
        for end in range(len(path), 0, -1):
            written = self.written.get(path[:end])
            if written is not None:
                return (*written, *path[end:])
        return path

    def place_of(self, path: KeyPath) -> str:
        """Return file and line of the nearest enclosing key that stands in the file."""
        path = self.as_written(path)
        for end in range(len(path), 0, -1):
            line = self._lines.get(path[:end])
            if line is not None:
                return place(self.file, line)
        return place(self.file)

    def says(self, path: KeyPath, reason: str, value: Any = None) -> str:
        """Return one line about a key: `task.toml, line 7: agent.timeout_sec = "ten": reason`."""
        shown = "" if value is None else f" = {shown_value(value)}"
        return f"{self.place_of(path)}: {dotted(self.as_written(path))}{shown}: {reason}"


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as text: `sandbox.mcp_servers[0].url`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{_bare(part)}"
    return text.removeprefix(".")


def _bare(key: str) -> str:
    return key if key and key.replace("-", "").replace("_", "").isalnum() else shown_value(key)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a copy made only of text, numbers, booleans, None, lists and tables with text keys.

    Dates become ISO text, other keys their text.

    Raises:
        NotPlainError: It nests more than `DEPTH_LIMIT` levels.
    """
    if isinstance(value, str | int | float) or value is None:
        return value
    if depth >= DEPTH_LIMIT:
        raise NotPlainError
    if isinstance(value, dict):
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else shown_value(key)


def value_at(data: Any, path: KeyPath) -> Any:
    """Return the value at a path, None where there is none."""
    for part in path:
        if isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data
