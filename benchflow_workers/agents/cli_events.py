"""Events of command lines, as updates of the Agent Client Protocol: one form for every trajectory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["chunk", "tool_call", "tool_end"]


def chunk(text: str, *, is_thought: bool = False) -> Mapping[str, Any]:
    """Return something that was said, or thought."""
    kind = "agent_thought_chunk" if is_thought else "agent_message_chunk"
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def tool_call(identity: str, title: str, arguments: Any) -> Mapping[str, Any]:
    """Return the beginning of a tool's work."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": identity,
        "title": title,
        "status": "in_progress",
        "rawInput": arguments,
    }


def tool_end(identity: str, text: str, *, is_error: bool) -> Mapping[str, Any]:
    """Return the end of a tool's work."""
    return {
        "sessionUpdate": "tool_call_update",
        "toolCallId": identity,
        "status": "failed" if is_error else "completed",
        "rawOutput": text,
    }
