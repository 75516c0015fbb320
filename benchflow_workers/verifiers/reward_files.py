"""The files below `/logs/verifier`, read with the distrust they deserve.

Whatever is in them was written by a test script, or by whoever fooled it: sizes are
bounded, links are not followed, and a number is a number only when it looks like one.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow_client.errors import VerifierError

__all__ = [
    "InvalidRewardError",
    "is_number",
    "parse_json",
    "parse_number",
    "quoted",
    "read_counts",
    "read_file",
]

FILE_LIMIT_BYTES = 1 << 20
"""A larger reward file is refused: it is a log or an attack, not a verdict."""

CTRF_LIMIT_BYTES = 16 << 20
"""A larger test report is not read; the file itself stays with the trial."""

QUOTE_CHARS = 60
"""Characters of an offending text that a message shows."""

CTRF_COUNTS = ("tests", "passed", "failed", "skipped", "pending", "other")
"""Counts of a CTRF summary that are kept."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_BLANKS = " \t\r\n"
_HINT = "See the contract of reward files; the number must be finite and in the task's range."


class InvalidRewardError(VerifierError):
    """A reward file says something that is not allowed; code `verifier.invalid_reward`.

    Args:
        message: What is wrong, with the offending text quoted.
    """

    def __init__(self, message: str) -> None:
        super().__init__("verifier.invalid_reward", message, hint=_HINT)


def read_file(path: Path, *, limit_bytes: int = FILE_LIMIT_BYTES) -> bytes | None:
    """Return the bytes of a regular file, or None where nothing has that name.

    Raises:
        InvalidRewardError: It is a link, a folder or a device, or larger than the limit.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRewardError(f"{path.name} cannot be read as a file: {error.strerror}.") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidRewardError(f"{path.name} is not a regular file.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit_bytes:
        raise InvalidRewardError(f"{path.name} is larger than {limit_bytes} bytes.")
    return content


def quoted(value: str | bytes) -> str:
    """Return a value for a message: in quotes, printable, shortened."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return repr(text) if len(text) <= QUOTE_CHARS else f"{text[:QUOTE_CHARS]!r}…"


def is_number(value: object) -> bool:
    """Return whether a JSON value is a number; `true` and `false` never are."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_number(content: bytes, name: str) -> float:
    """Return the one finite number a text file holds.

    Blanks and line ends around it and a UTF-8 byte order mark are fine; spellings
    that only Python knows (`1_0`, `nan`, `inf`) are not.

    Raises:
        InvalidRewardError: It holds anything else.
    """
    text = content.decode("utf-8-sig", "replace").strip(_BLANKS)
    if not text:
        raise InvalidRewardError(f"{name} is empty.")
    if not _NUMBER.fullmatch(text):
        raise InvalidRewardError(f"{name} holds {quoted(content)}, which is not one number.")
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRewardError(f"{name} holds {quoted(text)}, which is not a finite number.")
    return value


def parse_json(content: bytes, name: str) -> Any:
    """Return the JSON value of a file.

    Raises:
        InvalidRewardError: Not UTF-8, not JSON, NaN or Infinity, a key given twice,
            nested too deeply, or a string that is no Unicode text.
    """

    def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidRewardError(f"{name} gives the key {quoted(twice)} twice.")
        return mapping

    def no_constant(text: str) -> float:
        raise InvalidRewardError(f"{name} holds {text}, which is not a finite number.")

    try:
        text = content.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise InvalidRewardError(f"{name} is nested too deeply.") from error
    except ValueError as error:
        raise InvalidRewardError(
            f"{name} holds {quoted(content)}, which is not valid JSON: {error}."
        ) from error
    return value


def read_counts(path: Path) -> dict[str, int]:
    """Return the counts of a CTRF test report; empty where there is none that can be read."""
    try:
        content = read_file(path, limit_bytes=CTRF_LIMIT_BYTES)
        report = None if content is None else parse_json(content, path.name)
    except InvalidRewardError:
        return {}
    for key in ("results", "summary"):
        report = report.get(key) if isinstance(report, dict) else None
    if not isinstance(report, dict):
        return {}
    return {key: report[key] for key in CTRF_COUNTS if type(report.get(key)) is int}
