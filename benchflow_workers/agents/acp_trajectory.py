"""What an agent says it does, as events: consecutive chunks merged, tool calls kept up to date, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_client.schema.base import utc_now
from benchflow_client.store.documents import plain_json

__all__ = ["Trajectory"]

MAX_EVENTS: Final = 100_000
LIMIT_BYTES: Final = 256 << 20
"""Later events are counted and left out, so that no agent fills a worker's memory."""

_PART_BYTES: Final = 64
"""What a piece of text takes besides its characters."""

_CHUNKS: Final = {"agent_message_chunk": "agent_message", "agent_thought_chunk": "agent_thought"}
_KEPT_AS_THEY_ARE: Final = frozenset({"plan", "current_mode_update"})
_TOOL_KEYS: Final = {
    "title": "title",
    "kind": "kind",
    "status": "status",
    "content": "content",
    "locations": "locations",
    "rawInput": "raw_input",
    "rawOutput": "raw_output",
}
_UNFINISHED: Final = frozenset({"pending", "in_progress"})


class Trajectory:
    """Events of one turn of an agent.

    Attributes:
        last_active: When the agent last did something (monotonic seconds).
        n_tool_calls: Tool calls begun.
        n_left_out: Updates that found no room.
        has_acted: It said, thought or did anything.
        n_changes: How often the events changed.
    """

    def __init__(self) -> None:
        self.last_active = time.monotonic()
        self.n_tool_calls = 0
        self.n_left_out = 0
        self.has_acted = False
        self.n_changes = 0
        self._events: list[dict[str, Any]] = []
        self._calls: dict[str, dict[str, Any]] = {}
        self._touched: dict[str, float] = {}  # tool calls that have not ended -> when they last changed
        self._bytes = 0

    def told(self, prompt: str) -> None:
        """Record what the agent is told."""
        self.last_active = time.monotonic()
        self.mark({"type": "user_message", "text": plain_json(prompt)})

    def mark(self, event: Mapping[str, Any]) -> None:
        """Record an event of the worker's own."""
        self.n_changes += 1
        if self._has_room(_size(event)):
            self._events.append({**event, "ts": utc_now().isoformat()})

    def update(self, update: Mapping[str, Any]) -> None:
        """Record a `session/update`; one of an unknown kind, or of no sense, changes nothing."""
        update = plain_json(update)
        kind = str(update.get("sessionUpdate"))
        if kind in _CHUNKS:
            self._chunk(_CHUNKS[kind], update.get("content"))
        elif kind in {"tool_call", "tool_call_update"}:
            self._tool_call(update)
        elif kind in _KEPT_AS_THEY_ARE:
            self.mark({**update, "type": kind})

    def idle_since(self, idle_s: float) -> float:
        """Return until when (monotonic seconds) an agent may do nothing.

        While a tool runs, three times as long from its last sign.
        """
        until = self.last_active + idle_s
        return max([until, *(touched + 3 * idle_s for touched in self._touched.values())])

    def pending(self) -> tuple[str, ...]:
        """Return the ids of tool calls that have not ended."""
        return tuple(self._touched)

    def events(self) -> list[dict[str, Any]]:
        """Return the events; each can be written as UTF-8 JSON."""
        events = list(_written(self._events))
        if self.n_left_out:
            events.append({"type": "truncated", "n_left_out": self.n_left_out})
        return events

    def _chunk(self, kind: str, content: Any) -> None:
        self._act()
        text = content.get("text") if isinstance(content, Mapping) else None
        is_text = isinstance(text, str)
        if not self._has_room(_size(text if is_text else content)):
            return
        last = self._events[-1] if self._events else {}
        if not is_text:
            self._events.append({"type": kind, "content": content, "ts": utc_now().isoformat()})
        elif last.get("type") == kind and "parts" in last:
            last["parts"].append(text)
        else:
            self._events.append({"type": kind, "parts": [text], "ts": utc_now().isoformat()})

    def _tool_call(self, update: Mapping[str, Any]) -> None:
        self._act()
        identity = str(update.get("toolCallId"))
        changes = {name: update[key] for key, name in _TOOL_KEYS.items() if update.get(key) is not None}
        call = self._calls.get(identity)
        if call is None:
            self.n_tool_calls += 1
            call = {
                "type": "tool_call",
                "tool_call_id": identity,
                "status": "pending",
                "ts": utc_now().isoformat(),
            }
            if not self._has_room(_size(call)):
                return
            self._calls[identity] = call
            self._events.append(call)
        if not self._has_room(_size(changes)):
            changes = {key: value for key, value in changes.items() if key == "status"}
        call.update(changes)
        call["status"] = str(call["status"])
        if call["status"] in _UNFINISHED:
            self._touched[identity] = time.monotonic()
        else:
            self._touched.pop(identity, None)
            call["finished_at"] = utc_now().isoformat()

    def _act(self) -> None:
        self.n_changes += 1
        self.has_acted = True
        self.last_active = time.monotonic()

    def _has_room(self, size_bytes: int) -> bool:
        if len(self._events) >= MAX_EVENTS or self._bytes + size_bytes > LIMIT_BYTES:
            self.n_left_out += 1
            return False
        self._bytes += size_bytes
        return True


def _written(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for event in events:
        parts = event.get("parts")
        if parts is None:
            yield event
        else:
            yield {"type": event["type"], "text": "".join(parts), "n_chunks": len(parts), "ts": event["ts"]}


def _size(value: Any) -> int:
    """Return about how much memory a value takes, small pieces included."""
    if isinstance(value, str):
        return len(value) + _PART_BYTES
    if isinstance(value, Mapping):
        return _PART_BYTES + sum(_size(str(key)) + _size(item) for key, item in value.items())
    return _PART_BYTES + (sum(map(_size, value)) if isinstance(value, list) else 0)
