"""Skills: folders with a `SKILL.md` that agents find by themselves, and whether a job gives them any."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from benchflow_client.schema.base import Document

__all__ = [
    "BUNDLED_SKILLS",
    "COMMON_SKILL_PATHS",
    "GENERATED_SKILLS",
    "NO_SKILL",
    "SKILLS_DIR",
    "SKILL_FILE",
    "PlannedSkills",
    "SkillMode",
]

SkillMode = Literal["no-skill", "with-skill", "self-gen"]
"""None at all, those of the task or of a folder, or those that the agent writes itself before it begins."""

NO_SKILL: Final[SkillMode] = "no-skill"
"""What a job does that says nothing of skills."""

SKILL_FILE: Final = "SKILL.md"
"""What makes a folder a skill."""

BUNDLED_SKILLS: Final = "environment/skills"
"""Folder of a task with its own skills."""

GENERATED_SKILLS: Final = "/app/generated-skills"
"""Folder in the sandbox in which an agent writes skills of its own."""

SKILLS_DIR: Final = "/skills"
"""Where skills stand in a sandbox, unless the task says otherwise."""

COMMON_SKILL_PATHS: Final = (
    "$HOME/.claude/skills",
    "$HOME/.codex/skills",
    "$HOME/.opencode/skills",
    "$HOME/.agents/skills",
)
"""Where programs look that do not say where they look."""


class PlannedSkills(Document):
    """A folder of skills that a job brings."""

    bundle: str = Field(description="SHA-256 of the folder's bundle.")
    names: tuple[str, ...] = Field(min_length=1, description="Names of its skills, in order.")
