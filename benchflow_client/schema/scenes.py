"""What only task.md declares: roles, scenes, a simulated user, and how prompts are put together."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.task_types import EnvMap, FreeMap, PlainText, TimeoutS

__all__ = [
    "DocumentTable",
    "Part",
    "PromptParts",
    "Role",
    "Roles",
    "Scene",
    "SimulatedUser",
    "TaskDocument",
    "Turn",
    "rounds_of_rule",
]

Part = Literal["base", "role", "scene", "turn"]
"""A part of a prompt: the task's own, the role's, the scene's, the turn's."""

_ROUNDS = re.compile(r"-([1-9]\d{0,3})-rounds$")


class Role(Record):
    """One agent of a task with several."""

    agent: str = Field(
        min_length=1,
        description="Agent that plays the role: `job` for the job's own, a registered name, or a script of the task.",
    )
    model: str | None = Field(default=None, description="Its model; None = the agent's default.")
    reasoning_effort: str | None = Field(default=None, description="Its effort; None = the agent's default.")
    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    timeout_sec: TimeoutS | None = Field(
        default=None, description="Seconds for one session of it; None = agent's."
    )
    idle_timeout_sec: TimeoutS | None = Field(
        default=None, description="Seconds without output; None = default."
    )
    skills_dir: PlainText | None = Field(default=None, description="Its skills; None = the task's.")
    capabilities: tuple[str, ...] = Field(default=(), description="What the role is meant to do.")

    @field_validator("agent")
    @classmethod
    def _names_somebody(cls, value: str) -> str:
        if not value.removeprefix("acp:"):
            raise ValueError("expected the name or the path of an agent")
        return value


class Roles(Record):
    """All agents of a task with several."""

    roles: dict[str, Role] = Field(default_factory=dict, description="Roles by name.")


class Turn(Record):
    """One prompt of a scene."""

    role: str = Field(description="Role that is prompted.")
    prompt: str | None = Field(default=None, description="The prompt; None = from the parts of the document.")


class Scene(Record):
    """A part of the task played by some roles in turns."""

    name: str | None = Field(default=None, description="Name; None = scene-N, counted from 1.")
    roles: tuple[str, ...] = Field(
        default=(), description="Roles in it; empty = those of its turns, else all."
    )
    turns: tuple[Turn, ...] = Field(default=(), description="Prompts in order; empty = one per role.")
    skills_dir: PlainText | None = Field(default=None, description="Skills of the scene; None = the task's.")

    @field_validator("turns", mode="before")
    @classmethod
    def _role_names(cls, value: Any) -> Any:
        """Write out turns given as a role's name only."""
        if not isinstance(value, list | tuple):
            return value
        return tuple({"role": turn} if isinstance(turn, str) else turn for turn in value)

    @field_validator("turns")
    @classmethod
    def _roles_of_the_scene(cls, value: tuple[Turn, ...], info: ValidationInfo) -> tuple[Turn, ...]:
        roles = info.data.get("roles", ())
        strangers = [turn.role for turn in value if roles and turn.role not in roles]
        if strangers:
            raise ValueError(f"role {strangers[0]!r} is not in the scene's roles")
        return value


class SimulatedUser(Record):
    """Somebody who answers the agent."""

    model: str | None = Field(default=None, description="Model that plays the user; None = scripted.")
    stop_rule: str | None = Field(
        default=None, description="Ends with `-N-rounds`, at most N rounds; None = 5 rounds."
    )
    private_facts: FreeMap = Field(default_factory=dict, description="What only the user knows.")

    @field_validator("stop_rule")
    @classmethod
    def _counts_rounds(cls, value: str | None) -> str | None:
        if value is not None and rounds_of_rule(value) is None:
            raise ValueError("expected a rule that ends with -<n>-rounds")
        return value


def rounds_of_rule(rule: str) -> int | None:
    """Return how many rounds a stop rule allows; None = it does not say."""
    found = _ROUNDS.search(rule)
    return None if found is None else int(found[1])


class PromptParts(Record):
    """How the parts of a prompt are put together."""

    composition: Literal["replace", "append"] = Field(default="replace", description="First part, or all.")
    order: tuple[Part, ...] | None = Field(
        default=None, min_length=1, description="Parts in order; None = the composition's own."
    )


class DocumentTable(Record):
    """What the table `benchflow` says of prompts; its other keys are free."""

    prompt: PromptParts = Field(default_factory=PromptParts, description="How prompts are put together.")


class TaskDocument(Record):
    """All of it."""

    agents: Roles = Field(default_factory=Roles, description="Agents of the task.")
    scenes: tuple[Scene, ...] = Field(default=(), description="Parts of the task.")
    user: SimulatedUser | None = Field(default=None, description="Simulated user; None = none.")
    benchflow: DocumentTable = Field(default_factory=DocumentTable, description="Settings of the document.")
