"""Events of command lines, as updates of the Agent Client Protocol: one form for every trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["chunk", "token_usage", "tool_call", "tool_end"]


_MOST_TOKENS: Final = 10**12  # of one turn: a larger number would spoil every sum


def token_usage(input_tokens: Sequence[Any], output_tokens: Any) -> Mapping[str, Any]:
    """Return fields of `AgentUsage`; empty where a number is none, or cannot be true.

    Args:
        input_tokens: Parts that add up to what was asked, those from a cache and those written to it included.
        output_tokens: What was answered.
    """
    parts = [*input_tokens, output_tokens]
    if not all(
        isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= _MOST_TOKENS for part in parts
    ):
        return {}
    total_in = sum(input_tokens)
    return {
        "n_input_tokens": total_in,
        "n_output_tokens": output_tokens,
        "total_tokens": total_in + output_tokens,
    }


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
