"""From the roles, scenes and prompts of a task.md to who is told what, in which order; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchflow_client.schema.scenes import Part, PromptParts, Scene, TaskDocument
from benchflow_client.schema.task import Task

__all__ = [
    "JOB_AGENT",
    "PlannedTurn",
    "composed_prompt",
    "document_of",
    "planned_turns",
    "sessions_of",
    "with_prefix",
]

JOB_AGENT: Final = "job"
"""What a role names as its agent when the job's own plays it, whichever that is."""

_ORDER: Final[Mapping[str, tuple[Part, ...]]] = {
    "replace": ("turn", "scene", "role", "base"),
    "append": ("base", "role", "scene", "turn"),
}
"""Order of the parts where the document gives none: the most special first, or last."""

_KEYS: Final = ("agents", "scenes", "user")


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One prompt to one role.

    Attributes:
        id: `scene-<i>-turn-<j>-<role>`, both counted from 1.
        scene: Name of the scene.
        scene_number: Its position, from 1; two scenes may have one name.
        role: Name of the role.
        prompt: What it is told; empty = the document has nothing to tell it.
    """

    id: str
    scene: str
    scene_number: int
    role: str
    prompt: str


def document_of(task: Task) -> TaskDocument:
    """Return the document keys of a task that was read without a problem."""
    given = {key: task.document[key] for key in _KEYS if key in task.document}
    prompt = task.document.get("benchflow", {}).get("prompt")
    return TaskDocument.model_validate(given | ({"benchflow": {"prompt": prompt}} if prompt else {}))


def composed_prompt(parts: Mapping[Part, str], how: PromptParts) -> str:
    """Return the prompt that parts make: the first that is not blank, or all of them, a blank line between.

    Where no part of the order says anything it is the base prompt.
    """
    order = dict.fromkeys(how.order or _ORDER[how.composition])
    said = [parts[part] for part in order if parts.get(part, "").strip()]
    if not said:
        return parts.get("base", "")
    return said[0] if how.composition == "replace" else "\n\n".join(text.strip("\n") for text in said)


def with_prefix(task: Task, prompt: str) -> str:
    """Return a prompt behind what the task puts before all of them."""
    prefix = task.config.agent.prompt_prefix
    return f"{prefix}\n\n{prompt}" if prefix and prompt else prompt


def planned_turns(task: Task) -> tuple[PlannedTurn, ...]:
    """Return all turns of a task's scenes in order; empty = it declares neither scenes nor roles.

    Roles without scenes play one scene, a turn each in their order. A scene without turns has
    one for each of its roles.
    """
    document = document_of(task)
    declared = tuple(document.agents.roles)
    scenes = document.scenes or ((Scene(),) if declared else ())
    prompts = task.document.get("prompts", {})
    turns = []
    for number, scene in enumerate(scenes, start=1):
        name = scene.name or f"scene-{number}"
        for position, (role, own) in enumerate(_turns(scene, declared), start=1):
            parts: dict[Part, str] = {
                "base": task.instruction,
                "role": prompts.get("roles", {}).get(role, ""),
                "scene": prompts.get("scenes", {}).get(name, ""),
                "turn": own,
            }
            prompt = with_prefix(task, composed_prompt(parts, document.benchflow.prompt))
            turns.append(PlannedTurn(f"scene-{number}-turn-{position}-{role}", name, number, role, prompt))
    return tuple(turns)


def sessions_of(turns: Sequence[PlannedTurn]) -> tuple[tuple[PlannedTurn, ...], ...]:
    """Return the turns in groups that share a session: one role without a change, in one scene."""
    groups: list[list[PlannedTurn]] = []
    for turn in turns:
        if groups and _key(groups[-1][-1]) == _key(turn):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return tuple(tuple(group) for group in groups)


def _turns(scene: Scene, declared: Sequence[str]) -> list[tuple[str, str]]:
    """Return role and own prompt of each turn of a scene."""
    if scene.turns:
        return [(turn.role, turn.prompt or "") for turn in scene.turns]
    return [(role, "") for role in dict.fromkeys(scene.roles or declared)]


def _key(turn: PlannedTurn) -> tuple[int, str]:
    return turn.scene_number, turn.role
