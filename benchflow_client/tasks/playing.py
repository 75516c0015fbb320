"""Whether the turns of a task can be played: its roles by agents that exist.

Asked for each task and agent before anything is sent, and again by the worker. Controls play
no turns: they act once, whatever the task declares, so they can run every task.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchflow_client.catalog.agents import find_agent
from benchflow_client.errors import UnknownAgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.scenes import Role
from benchflow_client.schema.task import Task
from benchflow_client.tasks.scenes import document_of, is_played_by_job, planned_turns

__all__ = ["is_control", "unplayable"]

Reasons = Iterator[tuple[str, str]]


def unplayable(task: Task, agent: AgentSpec) -> tuple[str, ...]:
    """Return why the agent of a job cannot play a task's turns, one line each, its key first; empty = it can."""
    if is_control(agent):
        return ()
    return tuple(f"{path}: {reason}" for path, reason in dict.fromkeys(_roles(task, agent)))


def is_control(agent: AgentSpec) -> bool:
    """Return whether an agent checks the task and plays no turns."""
    if agent.is_script:
        return False
    try:
        return find_agent(agent.name).is_control
    except UnknownAgentError:
        return False


def _roles(task: Task, agent: AgentSpec) -> Reasons:
    document, turns = document_of(task), planned_turns(task)
    if document.scenes and not turns:
        yield "scenes", "no role has a turn in them"
    for index, scene in enumerate(document.scenes):
        if scene.skills_dir:
            yield f"scenes[{index}].skills_dir", "skills of a scene are not placed by this version"
    for turn in turns:
        if not turn.prompt.strip():
            yield (
                "scenes",
                f"{turn.id} is told nothing; give it a prompt, or write one below the front matter",
            )
    acting = {turn.role: document.agents.roles[turn.role] for turn in turns}
    for name, role in acting.items():
        yield from ((f"agents.roles.{name}.{key}", why) for key, why in _role(role, agent))
    if acting and not any(is_played_by_job(role, agent) for role in acting.values()):
        names = ", ".join(dict.fromkeys(role.agent for role in acting.values()))
        yield "agents.roles", f"{agent.label!r} plays none of them; they are played by {names}"


def _role(role: Role, agent: AgentSpec) -> Reasons:
    """Yield why one role cannot be played."""
    if role.reasoning_effort:
        yield "reasoning_effort", "an effort of a role is not passed on by this version"
    if role.skills_dir:
        yield "skills_dir", "skills of a role are not placed by this version"
    if is_played_by_job(role, agent) or AgentSpec.model_validate(role.agent).is_script:
        return
    try:
        if find_agent(role.agent).is_control:
            yield "agent", f"{role.agent!r} is a control, which plays no role"
    except UnknownAgentError:
        yield "agent", f"this version has no agent {role.agent!r}"
