"""What Claude Code prints with `--output-format stream-json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, token_usage, tool_call, tool_end

__all__ = ["claude_stream"]


class ClaudeEvents:
    """Its events."""

    @property
    def is_plain(self) -> bool:
        """Its output is events."""
        return False

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield text, thoughts, calls of tools and their results."""
        message = event.get("message")
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping):
                yield from _part(part)

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return the text of a result that is an error."""
        if event.get("type") == "result" and event.get("is_error"):
            return str(event.get("result") or event.get("subtype"))
        return None

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return whether it is the result."""
        return event.get("type") == "result"

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tokens of a result; its input is told without what came from a cache or went there."""
        told = event.get("usage")
        if event.get("type") != "result" or not isinstance(told, Mapping):
            return {}
        cached = (told.get("cache_read_input_tokens", 0), told.get("cache_creation_input_tokens", 0))
        return token_usage((told.get("input_tokens"), *cached), told.get("output_tokens"))


def _part(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    kind = part.get("type")
    if kind == "text":
        yield chunk(str(part.get("text")))
    elif kind == "thinking":
        yield chunk(str(part.get("thinking")), is_thought=True)
    elif kind == "tool_use":
        yield tool_call(str(part.get("id")), str(part.get("name")), part.get("input"))
    elif kind == "tool_result":
        result = part.get("content")
        text = result if isinstance(result, str) else json.dumps(result)
        yield tool_end(str(part.get("tool_use_id")), text, is_error=bool(part.get("is_error")))


def claude_stream() -> CliAgent:
    """Return the agent."""
    return CliAgent(ClaudeEvents())
