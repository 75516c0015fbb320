"""What every form of Claude needs to know of its surroundings."""

from __future__ import annotations

from collections.abc import Mapping

from benchflow_workers.agents.base import AgentContext

__all__ = ["claude_env"]


def claude_env(context: AgentContext) -> Mapping[str, str]:
    """Return one model for everything, and no traffic but to it."""
    model = context.env["BENCHFLOW_PROVIDER_MODEL"]
    return {
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_SMALL_FAST_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "128000",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
