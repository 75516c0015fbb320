"""`evals/evals.json` of a skill: questions that show whether agents do better with it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.skills import SKILLS_DIR
from benchflow_client.schema.task_types import EnvMap, PlainText, Workdir

__all__ = ["EvalCase", "EvalDefaults", "SkillEvals"]

CaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""A name that a folder can have."""


class EvalDefaults(Record):
    """What holds for all cases."""

    timeout_sec: float = Field(default=300.0, gt=0, le=86_400, description="Seconds for an agent's turn.")
    judge_model: str | None = Field(default=None, description="Model for a judge; not used by exact matches.")
    skill_mount_dir: Workdir = Field(default=SKILLS_DIR, description="Where the skill stands in the sandbox.")


class EvalCase(Record):
    """One question."""

    id: CaseId = Field(default="", description="Name of the case; empty = case-N, counted from 1.")
    question: PlainText = Field(min_length=1, description="What the agent is told.")
    ground_truth: PlainText = Field(
        default="", description="What its last message must hold; empty = not said."
    )
    expected_behavior: tuple[str, ...] = Field(default=(), description="What a judge looks for.")
    expected_skill: str = Field(
        default="", description="Skill that should be used; empty = the one under test."
    )
    expected_script: str = Field(default="", description="Script of it that should be run; for people.")
    environment: EnvMap = Field(default_factory=dict, description="Variables of the sandbox.")


class SkillEvals(Record):
    """The whole file."""

    version: str = Field(default="1", description="Version of the format; only 1 is read.")
    skill_name: str = Field(default="", description="Name of the skill; empty = that of its folder.")
    defaults: EvalDefaults = Field(default_factory=EvalDefaults, description="What holds for all cases.")
    cases: tuple[EvalCase, ...] = Field(min_length=1, description="The questions.")

    @field_validator("version")
    @classmethod
    def _known(cls, value: str) -> str:
        if value.partition(".")[0] != "1":
            raise ValueError("expected version 1")
        return value

    @field_validator("cases")
    @classmethod
    def _named_apart(cls, value: tuple[EvalCase, ...]) -> tuple[EvalCase, ...]:
        """Return the cases, each with a name of its own."""
        named = tuple(
            case if case.id else case.model_copy(update={"id": f"case-{number}"})
            for number, case in enumerate(value, start=1)
        )
        seen: set[str] = set()
        for case in named:
            if case.id.casefold() in seen:
                raise ValueError(f"two cases have the id {case.id!r}")
            seen.add(case.id.casefold())
        return named
