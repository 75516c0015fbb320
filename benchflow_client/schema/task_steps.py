"""The steps of a multi-step task: what each declares, and the task as each of them sees it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from benchflow_client.schema.task import AgentTable, Artifact, Healthcheck, TaskConfig, VerifierTable
from benchflow_client.schema.task_types import Reward

__all__ = ["StepTable", "StepTables", "step_config", "step_tables"]

_NOT_PORTABLE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')
_LONGEST_NAME = 100
_Table = TypeVar("_Table", bound=BaseModel)


class StepTable(BaseModel):
    """One step; what it leaves out is as the task says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Name of its folder below steps/.")
    min_reward: dict[str, Reward] | None = Field(
        default=None, description="Least reward, by name, for the next step to start; None = any."
    )
    agent: AgentTable = Field(default_factory=AgentTable, description="The agent's turn.")
    verifier: VerifierTable = Field(default_factory=VerifierTable, description="How its verdict is reached.")
    healthcheck: Healthcheck | None = Field(default=None, description="Gate before its agent; None = none.")
    artifacts: tuple[Artifact, ...] = Field(default=(), description="Paths to keep after it.")

    @field_validator("name")
    @classmethod
    def _portable(cls, value: str) -> str:
        is_odd = value in {"", ".", ".."} or value[-1] in " ." or value[0] == " "
        if is_odd or len(value) > _LONGEST_NAME or _NOT_PORTABLE.search(value):
            raise ValueError("expected the name of a folder that works on every system")
        return value

    @field_validator("min_reward", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """Read a bare number as the least `reward`."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"reward": value} if is_number else value

    @field_validator("artifacts", mode="before")
    @classmethod
    def _opened(cls, value: Any) -> Any:
        """Write out artifacts given as a path only."""
        if not isinstance(value, list | tuple):
            return value
        return tuple({"source": item} if isinstance(item, str) else item for item in value)


class StepTables(BaseModel):
    """All steps of a task, in order."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    steps: tuple[StepTable, ...] = Field(default=(), description="The steps; empty = one turn, one verdict.")

    @field_validator("steps")
    @classmethod
    def _unique(cls, value: tuple[StepTable, ...]) -> tuple[StepTable, ...]:
        seen: dict[str, str] = {}
        for step in value:
            key = unicodedata.normalize("NFC", step.name).casefold()
            if key in seen:
                raise ValueError(f"{seen[key]!r} and {step.name!r} would be the same folder")
            seen[key] = step.name
        return value


def step_tables(config: TaskConfig) -> tuple[StepTable, ...]:
    """Return the steps of a task that was read without a problem; empty = it has none."""
    return StepTables.model_validate({"steps": config.steps or ()}).steps


def step_config(config: TaskConfig, step: StepTable) -> TaskConfig:
    """Return what is declared for one step: its own keys before the task's, artifacts of both."""
    return config.model_copy(
        update={
            "agent": _over(config.agent, step.agent),
            "verifier": _over(
                config.verifier, step.verifier, env={**config.verifier.env, **step.verifier.env}
            ),
            "artifacts": (*config.artifacts, *step.artifacts),
            "steps": None,
        }
    )


def _over(general: _Table, special: _Table, **more: Mapping[str, str]) -> _Table:
    """Return the general table with what the special one sets."""
    own = {name: getattr(special, name) for name in special.model_fields_set}
    return general.model_copy(update={**own, **more})
