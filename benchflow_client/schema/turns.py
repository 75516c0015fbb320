"""What a task with several turns leaves in its result: one line for each session of an agent."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from benchflow_client.schema.base import Document

__all__ = ["RoundRow", "SessionResult"]


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
    n_skill_invocations: int = Field(default=0, description="Those of them that used a skill.")
    n_events: int = Field(default=0, description="Events it left in the trajectory.")
    total_tokens: int | None = Field(default=None, description="Tokens; None = unknown.")
    cost_usd: float | None = Field(default=None, description="US dollars; None = unknown.")


class RoundRow(BaseModel):
    """A line of `user_rounds.jsonl`; a line of `loop/iterations.jsonl` has some of its keys."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    round: int = Field(ge=0, description="Number of the round, from 0.")
    scene: str | None = Field(description="Name of the scene; None = the task has none.")
    role: str | None = Field(description="Name of the role; None = the task has none.")
    handoff_from: str | None = Field(
        default=None, description="Role of the round before, where it was another."
    )
    handoff_to: str | None = Field(default=None, description="Role of this round, where it is another.")
    prompt: str = Field(description="What the agent was told.")
    rewards: dict[str, Any] | None = Field(default=None, description="What the tests gave; None = nothing.")
    verifier_error: str | None = Field(default=None, description="Why they gave nothing; None = no failure.")
    n_tool_calls: int = Field(default=0, description="Tool calls of the round.")
    n_trajectory_events: int = Field(default=0, description="Events of the round.")
    wall_sec: float = Field(ge=0, description="Agent and tests together (s).")
    tokens: int | None = Field(default=None, description="Tokens of the round; None = unknown.")
    feedback_level: str | None = Field(default=None, description="What a loop tells; None = it is no loop.")

    @property
    def is_solved(self) -> bool:
        """Whether the tests gave a reward of 1 or more."""
        reward = (self.rewards or {}).get("reward")
        return isinstance(reward, int | float) and not isinstance(reward, bool) and reward >= 1

    def user_row(self) -> dict[str, Any]:
        """Return the line of a user's round."""
        level = set() if self.feedback_level is not None else {"feedback_level"}
        return self.model_dump(mode="json", exclude=level)

    def iteration(self) -> dict[str, Any]:
        """Return the line of a loop's iteration."""
        keys = {"round", "rewards", "verifier_error", "feedback_level", "wall_sec", "tokens"}
        return self.model_dump(mode="json", include=keys)
