"""What a job says about an agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from benchflow_client.schema.agent_definition import Effort
from benchflow_client.schema.base import Record

_ACP = "acp:"
_ACP_NAME = re.compile(r"acp[:/][a-z0-9][a-z0-9-]*(@.*)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_script_name(name: str) -> bool:
    """Return whether a name is the path of a file rather than a registered name."""
    return "/" in name or name.endswith(".py")


def check_env(items: tuple[str, ...]) -> tuple[str, ...]:
    """Return variables as they are.

    Raises:
        ValueError: One is neither `NAME` nor `NAME=VALUE`.
    """
    for item in items:
        if not _ENV_NAME.fullmatch(item.partition("=")[0]):
            raise ValueError(f"{item!r} is neither NAME nor NAME=VALUE")
    return items


class AgentSpec(Record):
    """One agent of a job: a registered name, or a script of the user's."""

    name: str = Field(
        min_length=1,
        description="Registered name (`bench agents`), or the path of an executable or Python file.",
    )
    model: str | None = Field(default=None, description="LLM the agent uses; None = its default.")
    env: tuple[str, ...] = Field(
        default=(),
        description="Variables for the agent: `NAME` is read on the worker, `NAME=VALUE` travels "
        "in clear and is meant for settings, not for secrets.",
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Wall clock in seconds; None = as each task says.",
    )

    idle_timeout_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without a sign of work; 0 = any; None = as the job says.",
    )
    protocol: Literal["acp"] | None = Field(
        default=None,
        description="How the agent is talked to: acp = the Agent Client Protocol; None = as it is registered, "
        "a script once for each prompt. `acp:PATH` as a name sets it.",
    )
    version: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$",
        max_length=64,
        description="Version of a ready-made agent; None = the one it is pinned to. `NAME@VERSION` as a name sets it.",
    )
    effort: Effort | None = Field(
        default=None,
        description="How hard its model is asked to think; None = as the job says, else as agent and model do.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        """Accept a bare name where a table is expected, and what a name says of protocol and version."""
        table = {"name": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or not isinstance(name := table.get("name"), str):
            return table
        if _ACP_NAME.fullmatch(name):  # a ready-made agent whose protocol is said besides
            name = name[len(_ACP) :]
        elif name.startswith(_ACP):
            return {**table, "name": name[len(_ACP) :], "protocol": "acp"}
        if is_script_name(name) or "@" not in name:
            return {**table, "name": name}
        name, _, version = name.partition("@")
        return {"version": version, **table, "name": name}

    @field_validator("env")
    @classmethod
    def _well_formed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_env(value)

    @property
    def is_script(self) -> bool:
        """Whether the name is the path of a file rather than a registered name."""
        return self.protocol is not None or is_script_name(self.name)

    @property
    def label(self) -> str:
        """What tables call this agent: its name, for a script the file's stem."""
        if not self.is_script:
            return "@".join(part for part in (self.name, self.version, self.model) if part)
        stem = self.name.rstrip("/").rsplit("/", 1)[-1]
        return stem.rsplit(".", 1)[0] or stem

    def with_defaults(self, *, model: str | None, env: tuple[str, ...]) -> Self:
        """Return a copy with the job's model and variables where it has none of its own."""
        return self.model_copy(update={"model": self.model or model, "env": (*env, *self.env)})
