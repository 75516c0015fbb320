"""What an agent is told of tests that were not content: pure text, never more than `FEEDBACK_LIMIT_CHARS`."""

from __future__ import annotations

from typing import Final

from benchflow_client.schema.loop import Feedback
from benchflow_workers.users.base import RoundResult

__all__ = ["FEEDBACK_LIMIT_CHARS", "feedback_text"]

FEEDBACK_LIMIT_CHARS: Final = 4000
"""Characters of feedback at most; more would be the test suite itself."""

_CUT: Final = "\n[…]\n"


def feedback_text(last: RoundResult, level: Feedback) -> str:
    """Return what a level tells of a round; empty = nothing.

    `counts` says how many tests passed, `names` also which did not, both as far as the tests
    wrote a report; `raw` is what they printed, its middle left out where it is long.
    """
    if level == "none":
        return ""
    if level == "raw":
        return _cut(last.verifier_output or last.verifier_error or "")
    lines = []
    report = last.report
    if report.passed is not None and report.total is not None:
        lines.append(f"{report.passed} of {report.total} tests pass.")
    if level == "names" and report.failed_names:
        lines.append("These do not:")
        lines.extend(f"- {name}" for name in report.failed_names)
    return _cut("\n".join(lines))


def _cut(text: str) -> str:
    """Return the beginning and the end of a long text."""
    text = text.strip()
    if len(text) <= FEEDBACK_LIMIT_CHARS:
        return text
    room = FEEDBACK_LIMIT_CHARS - len(_CUT)
    return text[: room // 2] + _CUT + text[-(room - room // 2) :]
