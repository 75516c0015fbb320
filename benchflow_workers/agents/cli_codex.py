"""What `codex exec --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, token_usage, tool_call, tool_end

__all__ = ["codex_events"]

_TOOLS: Final = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})


class CodexEvents:
    """Its events."""

    @property
    def is_plain(self) -> bool:
        """Its output is events."""
        return False

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield messages, reasoning, commands and changes of files."""
        item, kind = event.get("item"), event.get("type")
        if not isinstance(item, Mapping):
            return
        what, identity = str(item.get("type")), str(item.get("id"))
        if what in _TOOLS and kind == "item.started":
            yield tool_call(identity, what, dict(item))
        elif what in _TOOLS and kind == "item.completed":
            failed = item.get("status") == "failed" or item.get("exit_code") not in (0, None)
            yield tool_call(identity, what, dict(item))
            yield tool_end(identity, str(item.get("aggregated_output") or ""), is_error=failed)
        elif what in {"agent_message", "reasoning"} and kind == "item.completed":
            yield chunk(str(item.get("text")), is_thought=what == "reasoning")

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return the message of a turn that failed."""
        if event.get("type") != "turn.failed":
            return None
        error = event.get("error")
        return str(error.get("message") if isinstance(error, Mapping) else error)

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return whether the turn is complete."""
        return event.get("type") == "turn.completed"

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tokens of a complete turn; its input has what came from a cache."""
        told = event.get("usage")
        if not self.is_end(event) or not isinstance(told, Mapping):
            return {}
        return token_usage((told.get("input_tokens"),), told.get("output_tokens"))


def codex_events() -> CliAgent:
    """Return the agent."""
    return CliAgent(CodexEvents())
