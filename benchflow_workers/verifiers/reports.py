"""The test report `ctrf.json` as far as an agent may be told of it: counts, and names of what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchflow_workers.users.base import TestReport
from benchflow_workers.verifiers.reward import CTRF_JSON
from benchflow_workers.verifiers.reward_files import (
    CTRF_LIMIT_BYTES,
    InvalidRewardError,
    parse_json,
    read_counts,
    read_file,
)

__all__ = ["read_report"]

_NAME_CHARS: Final = 300
"""Characters of a test's name that are told."""

_MOST_NAMES: Final = 200
"""Names that are told; more say no more."""

_CONTENT: Final = frozenset({"passed", "skipped", "pending"})
"""Statuses of a test that has not failed."""


def read_report(logs: Path) -> TestReport:
    """Return the report in a folder of what tests left; an empty one where none can be read."""
    counts = read_counts(logs / CTRF_JSON)
    return TestReport(counts.get("passed"), counts.get("tests"), _failed_names(logs / CTRF_JSON))


def _failed_names(path: Path) -> tuple[str, ...]:
    try:
        content = read_file(path, limit_bytes=CTRF_LIMIT_BYTES)
        report: Any = None if content is None else parse_json(content, path.name)
    except InvalidRewardError:
        return ()
    for key in ("results", "tests"):
        report = report.get(key) if isinstance(report, dict) else None
    names = [_name(test) for test in report] if isinstance(report, list) else []
    return tuple(name for name in names if name)[:_MOST_NAMES]


def _name(test: Any) -> str:
    """Return the name of a test that failed on one line; empty = it did not, or has none."""
    if not isinstance(test, dict) or test.get("status") in _CONTENT or not isinstance(test.get("name"), str):
        return ""
    return " ".join(str(test["name"]).split())[:_NAME_CHARS]
