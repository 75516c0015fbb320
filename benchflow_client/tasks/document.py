"""The keys only task.md has: roles, scenes, a simulated user, and how prompts are put together."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.task_types import EnvMap, FreeMap, PlainText, TimeoutS, finite
from benchflow_client.tasks.config import validate
from benchflow_client.tasks.findings import Findings, nearest
from benchflow_client.tasks.raw import Raw

DOCUMENT_KEYS = ("agents", "scenes", "user", "benchflow")
"""Top-level keys of task.md that task.toml does not have."""


class Role(Record):
    """One agent of a task with several."""

    agent: str = Field(min_length=1, description="Agent that plays the role.")
    model: str | None = Field(default=None, description="Its model; None = the agent's default.")
    reasoning_effort: str | None = Field(default=None, description="Its effort; None = the agent's default.")
    env: EnvMap = Field(default_factory=dict, description="Variables, templates allowed.")
    timeout_sec: TimeoutS | None = Field(default=None, description="Seconds per turn; None = agent's.")
    idle_timeout_sec: TimeoutS | None = Field(
        default=None, description="Seconds without output; None = default."
    )
    skills_dir: PlainText | None = Field(default=None, description="Its skills; None = the task's.")
    capabilities: tuple[str, ...] = Field(default=(), description="What the role is meant to do.")


class Roles(Record):
    """All agents of a task with several."""

    roles: dict[str, Role] = Field(default_factory=dict, description="Roles by name.")


class Turn(Record):
    """One prompt of a scene."""

    role: str = Field(description="Role that is prompted.")
    prompt: str | None = Field(default=None, description="The prompt; None = from the parts of the document.")


class Scene(Record):
    """A part of the task played by some roles in turns."""

    name: str | None = Field(default=None, description="Name; None = scene-<position from 1>.")
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
    stop_rule: str | None = Field(default=None, description="Ends with -<n>-rounds; None = 5 rounds.")
    private_facts: FreeMap = Field(default_factory=dict, description="What only the user knows.")

    @field_validator("stop_rule")
    @classmethod
    def _counts_rounds(cls, value: str | None) -> str | None:
        if value is not None and not re.search(r"-[1-9]\d{0,3}-rounds$", value):
            raise ValueError("expected a rule that ends with -<n>-rounds")
        return value


class PromptParts(Record):
    """How the parts of a prompt are put together."""

    composition: Literal["replace", "append"] = Field(default="replace", description="First part, or all.")
    order: tuple[Literal["base", "role", "scene", "turn"], ...] | None = Field(
        default=None, min_length=1, description="Parts in order; None = the composition's own."
    )


class _Benchflow(Record):
    prompt: PromptParts = Field(default_factory=PromptParts, description="How prompts are put together.")


class _Document(Record):
    agents: Roles = Field(default_factory=Roles, description="Agents of the task.")
    scenes: tuple[Scene, ...] = Field(default=(), description="Parts of the task.")
    user: SimulatedUser | None = Field(default=None, description="Simulated user; None = none.")
    benchflow: _Benchflow = Field(default_factory=_Benchflow, description="Settings of the document.")


def read_document(raw: Raw, findings: Findings) -> dict[str, Any]:
    """Return the validated document keys a file gives, taken out of `raw.data`."""
    given = {key: raw.data.pop(key) for key in DOCUMENT_KEYS if key in raw.data}
    if not given:
        return {}
    benchflow = given.get("benchflow")
    checked = dict(given)
    if isinstance(benchflow, dict):  # a free map but for `prompt`
        checked["benchflow"] = {key: benchflow[key] for key in ("prompt",) if key in benchflow}
    document = validate(_Document, Raw(raw.file, checked, raw.find_lines, raw.written), findings)
    if document is None:
        return given
    _check_roles(document, raw, findings)
    kept = document.model_dump(mode="json", exclude_unset=True, include=set(given))
    if "scenes" in kept:
        kept["scenes"] = [{"name": f"scene-{i}", **scene} for i, scene in enumerate(kept["scenes"], start=1)]
    return kept | ({"benchflow": finite(benchflow)} if benchflow else {})


def _check_roles(document: _Document, raw: Raw, findings: Findings) -> None:
    """Refuse scenes that name roles nobody declared."""
    declared = list(document.agents.roles)
    for index, scene in enumerate(document.scenes):
        for role in dict.fromkeys((*scene.roles, *(turn.role for turn in scene.turns))):
            if role not in declared:
                reason = f"role {role!r} is not declared in agents.roles{nearest(role, declared)}"
                findings.problem(raw.says(("scenes", index), reason))
