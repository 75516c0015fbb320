"""Codex by its command line: `codex exec --json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchflow_client.catalog.agent_programs import CODEX, Program
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk, tool_call, tool_end

__all__ = ["codex_cli"]

_TOOLS: Final = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})


class Codex:
    """Its arguments and its events."""

    @property
    def program(self) -> Program:
        """Codex."""
        return CODEX

    def arguments(self, context: AgentContext, *, is_first: bool) -> Sequence[str]:
        """Return a run that asks nobody and has no sandbox of its own; later prompts go on with the session."""
        settings = {
            "model": context.env["BENCHFLOW_PROVIDER_MODEL"],
            "model_provider": "benchflow",
            "model_providers.benchflow.name": "benchflow",
            "model_providers.benchflow.base_url": context.env["OPENAI_BASE_URL"],
            "model_providers.benchflow.env_key": "BENCHFLOW_PROVIDER_API_KEY",
            "model_providers.benchflow.wire_api": "responses",
            "approval_policy": "never",
            "sandbox_mode": "danger-full-access",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={json.dumps(value)}")]
        session = [] if is_first else ["resume", "--last"]
        return ["exec", *session, "--json", "--skip-git-repo-check", *options, "-"]

    def env(self, context: AgentContext) -> Mapping[str, str]:
        """Return nothing: all of it stands in the arguments, and the token in a variable that is there."""
        del context
        return {}

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield messages, reasoning, commands and changes of files."""
        item, kind = event.get("item"), event.get("type")
        if not isinstance(item, Mapping):
            return
        what, identity = item.get("type"), str(item.get("id"))
        if what in _TOOLS and kind == "item.started":
            yield tool_call(identity, str(what), dict(item))
        elif what in _TOOLS and kind == "item.completed":
            failed = item.get("status") == "failed" or item.get("exit_code") not in {0, None}
            yield tool_call(identity, str(what), dict(item))
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


def codex_cli() -> CliAgent:
    """Return the agent."""
    return CliAgent(Codex())
