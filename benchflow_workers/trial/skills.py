"""Which skills an agent of a trial has, resolved before any sandbox exists; an agent that writes its own first."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow_client.schema.skills import (
    BUNDLED_SKILLS,
    COMMON_SKILL_PATHS,
    GENERATED_SKILLS,
    SKILLS_DIR,
    PlannedSkills,
)
from benchflow_client.tasks.skills import bundled_skills
from benchflow_workers.agents.base import AgentContext, SkillSet
from benchflow_workers.agents.skills import SKILLS_VARIABLE
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.records import Attempt, Prepared, PreparedStep, TaskFolder
from benchflow_workers.trial.session import Session

__all__ = [
    "named_skills",
    "skills_of",
    "with_skill_set",
    "with_skills",
    "with_step_skills",
    "with_workshop",
]

OTHER_SKILLS_DIR: Final = "/opt/benchflow/skills"
"""Folder of root's below which skills stand that not every turn has."""

_CONTROL_PATHS: Final = (*COMMON_SKILL_PATHS, "$WORKSPACE/skills")
"""Where solutions may look."""

CREATOR: Final = "skill-creator"
SOLVER: Final = "solver"
"""What the two turns of an agent that writes its own skills are called."""

_PROMPT: Final = f"""\
Prepare skills for another agent. Do not do the task below yourself.

A skill is a folder with a file SKILL.md: first a front matter with `name` (that of the folder) and `description` \
(what it is for and when to use it), then instructions. Scripts and other files may stand beside it.

The other agent is given the task below in a new session in this same sandbox, with your skills and nothing else of \
what you know now. Look at the sandbox as far as you need, and write down how work of this kind is done: steps, \
commands, pitfalls, checks.{{help}}

Write one or more skills as {GENERATED_SKILLS}/NAME/SKILL.md; a NAME is made of lower case letters, digits and `-`. \
Change nothing else.

The task:

{{task}}"""
_HELP: Final = " Use the skills you have for writing skills."


def skills_of(attempt: Attempt, whole: TaskFolder, bundles: BundleCache) -> SkillSet | None:
    """Return the skills that a job gives every agent at a task, where each looks left open; None = none.

    Args:
        attempt: The attempt.
        whole: The task, its own skills included.
        bundles: Folders on this host.

    Raises:
        TrialError: `store.bundle_missing`.
        StoreError: The store cannot be read.
    """
    plan = attempt.plan
    if plan.spec.skill_mode != "with-skill" or plan.regrade is not None:
        return None
    source = bundled_skills(whole.path) if plan.skills is None else bundles.folder_of(plan.skills.bundle)
    target = whole.task.config.sandbox.skills_dir or SKILLS_DIR
    return None if source is None else SkillSet(source, target, ())


def named_skills(attempt: Attempt, folder: str | None, name: str, task_dir: Path) -> SkillSet | None:
    """Return the skills that a role or scene names; None = none, or the job gives others or none.

    Args:
        attempt: The attempt.
        folder: What it names: a folder of the task, or from `/` one in the sandbox.
        name: What the role or scene is called, fit for a path.
        task_dir: The unpacked task.
    """
    if folder is None or attempt.plan.spec.skill_mode != "with-skill":
        return None
    target = f"{OTHER_SKILLS_DIR}/{name}"
    if folder.startswith("/"):
        return SkillSet(None, target, (), origin=folder)
    if attempt.plan.skills is not None and posixpath.normpath(folder) == BUNDLED_SKILLS:
        return None
    return SkillSet(task_dir / folder, target, ())


def with_skill_set(context: AgentContext, skills: SkillSet | None, *, is_control: bool) -> AgentContext:
    """Return what an agent may know, with skills where it looks for them, and a variable that names their folder."""
    env = {name: value for name, value in context.env.items() if name != SKILLS_VARIABLE}
    if skills is None:
        return replace(context, env=env, skills=None)
    paths = context.definition.skill_paths if context.definition is not None else ()
    paths = _CONTROL_PATHS if is_control else paths or COMMON_SKILL_PATHS
    placed = replace(skills, paths=paths)
    return replace(context, env={**env, SKILLS_VARIABLE: skills.target}, skills=placed)


def with_skills(prepared: Prepared, skills: SkillSet | None) -> Prepared:
    """Return a rollout whose agent has skills, where commands are run at all."""
    given = skills if prepared.provider.capabilities.runs_commands else None
    context = with_skill_set(prepared.agent_context, given, is_control=prepared.agent.is_control)
    return replace(prepared, agent_context=context)


def with_step_skills(steps: tuple[PreparedStep, ...], skills: SkillSet | None) -> tuple[PreparedStep, ...]:
    """Return steps whose agents have skills."""
    return tuple(replace(step, prepared=with_skills(step.prepared, skills)) for step in steps)


def with_workshop(whole: Prepared, attempt: Attempt, bundles: BundleCache) -> Prepared:
    """Return a rollout in which the agent first writes skills, then does the task in a new session with them.

    Only where the job says so; controls write nothing.

    Raises:
        TrialError: `store.bundle_missing`.
        StoreError: The store cannot be read.
    """
    acts = whole.provider.capabilities.runs_commands and not whole.agent.is_control
    if attempt.plan.spec.skill_mode != "self-gen" or not acts:
        return whole
    label, agent, context = attempt.trial.agent.label, whole.agent, whole.agent_context
    planned = attempt.plan.skill_creator
    prompt = _PROMPT.format(help="" if planned is None else _HELP, task=context.prompts[0])
    first = replace(with_skill_set(context, _creators(planned, bundles), is_control=False), prompts=(prompt,))
    written = SkillSet(
        None,
        whole.folder.task.config.sandbox.skills_dir or SKILLS_DIR,
        (),
        origin=GENERATED_SKILLS,
        is_kept=True,
    )
    then = with_skill_set(context, written, is_control=False)
    creator = Session((CREATOR,), None, CREATOR, label, agent, first, workshop=GENERATED_SKILLS)
    return replace(whole, sessions=(creator, Session((SOLVER,), None, SOLVER, label, agent, then)))


def _creators(planned: PlannedSkills | None, bundles: BundleCache) -> SkillSet | None:
    if planned is None:
        return None
    return SkillSet(bundles.folder_of(planned.bundle), f"{OTHER_SKILLS_DIR}/{CREATOR}", ())
