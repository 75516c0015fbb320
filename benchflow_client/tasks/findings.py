"""What is wrong or odd about a task folder, collected while it is read.

One reader passes a `Findings` along so that a person gets every problem at once
and not one per attempt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

_LONGEST_VALUE = 60
"""Characters of an offending value that are shown."""


@dataclass(slots=True)
class Findings:
    """Problems (the task cannot be run) and warnings (it can, but look)."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Add a problem once."""
        if text not in self.problems:
            self.problems.append(text)

    def warning(self, text: str) -> None:
        """Add a warning once."""
        if text not in self.warnings:
            self.warnings.append(text)


def place(file: str, line: int | None = None) -> str:
    """Return where something stands: `task.toml, line 7`."""
    return f"{shown_name(file)}, line {line}" if line else shown_name(file)


def shown_name(name: str) -> str:
    """Return a file name that fits one line of text, whatever characters it holds."""
    return name if name.isprintable() else ascii(name)


def is_utf8(name: str) -> bool:
    """Return whether a name from the disk or the command line can be written as UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_value(value: Any) -> str:
    """Return a value as it could be written in a task file, shortened to one line."""
    text = json.dumps(value, ensure_ascii=False, default=str).replace("NaN", "nan").replace("Infinity", "inf")
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def suggestion(word: str, known: list[str]) -> str:
    """Return `Did you mean 'x'? ` for the nearest known spelling, else nothing; for hints."""
    close = get_close_matches(word, known, n=1, cutoff=0.7)
    return f"Did you mean {close[0]!r}? " if close else ""


def nearest(word: str, known: list[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known spelling, else nothing; for the end of a line."""
    found = suggestion(word, known)
    return f"; did{found.removeprefix('Did').rstrip()}" if found else ""
