"""What the pi coding agent prints with `--mode json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, tool_call, tool_end

__all__ = ["pi_events"]


class PiEvents:
    """Its events."""

    @property
    def is_plain(self) -> bool:
        """Its output is events."""
        return False

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield text, thoughts, calls of tools and their results."""
        kind, identity = event.get("type"), str(event.get("toolCallId"))
        if kind == "tool_execution_start":
            yield tool_call(identity, str(event.get("toolName")), event.get("args"))
        elif kind == "tool_execution_end":
            yield tool_end(identity, json.dumps(event.get("result")), is_error=bool(event.get("isError")))
        elif kind == "message_end":
            message = event.get("message")
            if isinstance(message, Mapping) and message.get("role") == "assistant":
                yield from _parts(message.get("content"))

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return the message of an answer that failed."""
        message = event.get("message")
        if event.get("type") != "message_end" or not isinstance(message, Mapping):
            return None
        return str(message.get("errorMessage")) if message.get("stopReason") == "error" else None

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return whether the agent has ended."""
        return event.get("type") == "agent_end"

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing: it does not say."""
        del event
        return {}


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            continue
        if part.get("type") == "text":
            yield chunk(str(part.get("text")))
        elif part.get("type") == "thinking":
            yield chunk(str(part.get("thinking")), is_thought=True)


def pi_events() -> CliAgent:
    """Return the agent."""
    return CliAgent(PiEvents())
