"""The trajectory a script agent may write: one JSON object a line in the file `$BENCHFLOW_EVENTS`.

Any object is an event; `type` says of which kind, such as `agent_message`, `tool_call` or
`tool_result`. The file is what the agent wrote, so a bad line costs that line only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

__all__ = ["EVENTS_PATH", "final_message", "parse_events"]

EVENTS_PATH: Final = "/logs/agent/events.jsonl"
"""Where the file stands in the sandbox."""

LINE_LIMIT_BYTES: Final = 32 << 20
"""A longer line is left out: tool results of tens of MB on one line do occur."""

MAX_EVENTS: Final = 100_000
"""Later events are left out, so that no agent fills a worker's memory."""

_SAID: Final = {"agent_message": "text", "script": "stdout", "oracle": "stdout"}
"""Types of events with the key under which they hold what was said."""

_MESSAGE_CHARS: Final = 1 << 20


def parse_events(content: bytes) -> list[dict[str, Any]]:
    """Return the events in a file of JSON lines.

    A line that is no JSON object, too long, nested too deeply, or with numbers JSON does
    not know becomes `{"type": "unreadable", "line": n, "size_bytes": n}` in its place.
    Bytes that are no UTF-8 are replaced; blank lines are skipped. Every event can be
    written as UTF-8 JSON.
    """
    events: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        if len(events) == MAX_EVENTS:
            events.append({"type": "truncated", "line": number})
            break
        event = _parse(line)
        events.append(event or {"type": "unreadable", "line": number, "size_bytes": len(line)})
    return events


def final_message(events: Sequence[Mapping[str, Any]]) -> str:
    """Return what an agent said last, its end where it is long; empty = nothing."""
    for event in reversed(events):
        text = event.get(_SAID.get(str(event.get("type")), ""))
        if isinstance(text, str) and text.strip():
            return text[-_MESSAGE_CHARS:]
    return ""


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line, None where there is none."""
    if len(line) > LINE_LIMIT_BYTES:
        return None
    try:
        value = json.loads(line.decode("utf-8-sig", "replace"), parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(text)
