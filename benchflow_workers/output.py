"""Kept output as people and records get it: gaps marked, tails readable."""

from __future__ import annotations

from typing import Final

__all__ = ["tail_text", "with_gap_marked"]

TAIL_CHARS: Final = 2000
"""Characters of a tail: enough for a traceback, small enough for a record."""

_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127) if chr(code) not in "\t\n"}


def with_gap_marked(kept: bytes, total_bytes: int) -> bytes:
    """Return kept output with a line where its middle is missing.

    Args:
        kept: What a sandbox kept: all, or as much of the start as of the end.
        total_bytes: What was written in all.
    """
    missing = total_bytes - len(kept)
    if missing <= 0:
        return kept
    middle = len(kept) // 2
    marker = f"\n[... {missing} bytes truncated ...]\n".encode()
    return kept[:middle] + marker + kept[middle:]


def tail_text(output: bytes, *, limit_chars: int = TAIL_CHARS) -> str:
    """Return the end of an output as text safe for any record or terminal.

    Bytes that are no UTF-8 and control characters are replaced; lines are whole
    where more than one fits.
    """
    text = output[-4 * limit_chars :].decode("utf-8", "replace").replace("\r\n", "\n").strip()
    if len(text) > limit_chars:
        text = text[-limit_chars:]
        text = text.partition("\n")[2] or text
    return text.translate(_CONTROLS)
