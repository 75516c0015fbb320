"""Claude Code by its command line: `claude -p`, events as `stream-json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchflow_client.catalog.agent_programs import CLAUDE_CODE, Program
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.claude import claude_env
from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, tool_call, tool_end
from benchflow_workers.agents.tools import MCP_CONFIG

__all__ = ["claude_code"]


class ClaudeCode:
    """Its arguments and its events."""

    @property
    def program(self) -> Program:
        """Claude Code."""
        return CLAUDE_CODE

    def arguments(self, context: AgentContext, *, is_first: bool) -> Sequence[str]:
        """Return a run that asks nobody; later prompts go on with the session."""
        more = [] if is_first else ["--continue"]
        servers = ["--mcp-config", context.env[MCP_CONFIG]] if MCP_CONFIG in context.env else []
        return [
            "-p", "--permission-mode", "bypassPermissions", "--output-format", "stream-json", "--verbose",
            "--model", context.env["BENCHFLOW_PROVIDER_MODEL"], *servers, *more,
        ]  # fmt: skip

    def env(self, context: AgentContext) -> Mapping[str, str]:
        """Return what Claude needs to know of its surroundings."""
        return claude_env(context)

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


def claude_code() -> CliAgent:
    """Return the agent."""
    return CliAgent(ClaudeCode())
