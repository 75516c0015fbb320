"""Which paths of a sandbox only root may enter while an agent works."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["LOCKED_PATHS", "NOTHING", "all_locked", "check_locked"]

LOCKED_PATHS: Final = ("/oracle", "/solution", "/verifier", "/tests", "/testbed_verify")
"""Solution, tests, and the copy of the workspace; locked unless a job asks for nothing to be."""

NOTHING: Final = "none"
"""In place of a path, on a command line that cannot say an empty list: nothing is locked."""

_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._+@-]+)+")


def check_locked(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths to lock beside the usual ones; empty = nothing at all is locked.

    Raises:
        ValueError: A path is not absolute, has a part `.` or `..`, an unusual character, or ends with `/`.
    """
    if tuple(paths) == (NOTHING,):
        return ()
    for path in paths:
        if not _PATH.fullmatch(path):
            raise ValueError(
                f"{path!r} is not an absolute path of letters, digits and . _ + @ - without '.', '..' or a "
                "last slash"
            )
    return tuple(paths)


def all_locked(asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return every path that is locked for what a job asks; None = the usual ones."""
    if asked is None:
        return LOCKED_PATHS
    return tuple(dict.fromkeys((*LOCKED_PATHS, *asked))) if asked else ()
