"""What OpenHands prints with `--headless --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, tool_call, tool_end

__all__ = ["openhands_events"]


class OpenHandsEvents:
    """Its events."""

    @property
    def is_plain(self) -> bool:
        """Its output is events."""
        return False

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield text, thoughts, calls of tools and their results."""
        kind, identity = event.get("kind"), str(event.get("tool_call_id"))
        if kind == "ActionEvent":
            if event.get("reasoning_content"):
                yield chunk(str(event["reasoning_content"]), is_thought=True)
            yield from (chunk(text, is_thought=True) for text in _texts(event.get("thought")))
            yield tool_call(identity, str(event.get("tool_name")), event.get("action"))
        elif kind == "ObservationEvent":
            told = event.get("observation")
            is_error = isinstance(told, Mapping) and bool(told.get("is_error"))
            text = "".join(_texts(told.get("content"))) if isinstance(told, Mapping) else ""
            yield tool_end(identity, text, is_error=is_error)
        elif kind == "AgentErrorEvent":
            yield tool_end(identity, str(event.get("error")), is_error=True)
        elif self.is_end(event):
            yield from map(chunk, _texts(event["llm_message"].get("content")))

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return what ended the conversation."""
        if event.get("kind") != "ConversationErrorEvent":
            return None
        return f"{event.get('code')}: {event.get('detail')}"

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return whether it is a message of the agent's: it says something once it has done what it does."""
        is_message = event.get("kind") == "MessageEvent" and isinstance(event.get("llm_message"), Mapping)
        return is_message and event.get("source") == "agent"

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing: it does not say."""
        del event
        return {}


def _texts(content: Any) -> list[str]:
    return [
        part["text"]
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    ]


def openhands_events() -> CliAgent:
    """Return the agent."""
    return CliAgent(OpenHandsEvents())
