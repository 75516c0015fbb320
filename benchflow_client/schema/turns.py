"""What a task with several turns leaves in its result: one line for each session of an agent."""

from __future__ import annotations

from pydantic import Field

from benchflow_client.schema.base import Document

__all__ = ["SessionResult"]


class SessionResult(Document):
    """One run of an agent: the turns of one role that follow each other, or one round."""

    turns: tuple[str, ...] = Field(description="Ids of its turns, `scene-<i>-turn-<j>-<role>`.")
    scene: str | None = Field(default=None, description="Name of the scene; None = the task has none.")
    role: str | None = Field(default=None, description="Name of the role; None = the task has none.")
    agent: str = Field(description="Label of the agent that played it.")
    model: str | None = Field(default=None, description="Its LLM; None = its default or none.")
    seconds: float = Field(ge=0, description="Wall clock of the session (s).")
    exit_code: int | None = Field(default=None, description="Exit code; None = none or killed.")
    timed_out: bool = Field(default=False, description="Its deadline ended it.")
    n_tool_calls: int = Field(default=0, description="Tool calls seen.")
    n_events: int = Field(default=0, description="Events it left in the trajectory.")
    total_tokens: int | None = Field(default=None, description="Tokens; None = unknown.")
    cost_usd: float | None = Field(default=None, description="US dollars; None = unknown.")
