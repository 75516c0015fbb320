"""From a job spec to a plan and the folders it needs: everything that can be known before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.catalog.agents import AgentEntry
from benchflow_client.catalog.own_agents import own_agents
from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.errors import TaskError
from benchflow_client.plan.agents import plan_agents
from benchflow_client.plan.playing import unplayable
from benchflow_client.plan.retry import Choice
from benchflow_client.plan.skills import plan_skills, skill_reasons, skill_warnings
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.ids import new_job_name, slug
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.skills import PlannedSkills
from benchflow_client.schema.task import Task
from benchflow_client.settings import Settings
from benchflow_client.tasks.bundle import digest_of
from benchflow_client.tasks.discover import BrokenTask, FoundTask, discover, is_selected, select
from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.manifest import manifest_text
from benchflow_client.tasks.separate import as_run
from benchflow_client.tasks.source import resolve

_LISTED_PROBLEMS = 20
"""Problems listed in one error; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan, and the local folders whose bundles it names.

    Attributes:
        plan: The plan.
        folders: Digest -> folder on this machine.
        warnings: What the authors of the tasks should know.
        resume: What becomes of the trials of the job it goes on with; None = a new job.
    """

    plan: Plan
    folders: dict[str, Path]
    warnings: tuple[str, ...]
    resume: Choice | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a spec refers to on this machine: tasks that were read, agents that are known.

    Attributes:
        spec: The spec.
        source: Where the tasks came from.
        found: The tasks to run.
        skipped: Names of broken tasks left out.
        agents: The agents.
        brought: Digest -> folder of what the job brings besides: staged scripts, skills.
        skills: Skills in place of the tasks' own; None = none.
        skill_creator: Skills for writing skills; None = none.
    """

    spec: JobSpec
    source: SourceInfo
    found: tuple[FoundTask, ...]
    skipped: tuple[str, ...]
    agents: tuple[PlannedAgent, ...]
    brought: dict[str, Path]
    skills: PlannedSkills | None = None
    skill_creator: PlannedSkills | None = None


def work_of(spec: JobSpec, settings: Settings) -> Work:
    """Find and read everything a spec refers to, with the folders and agents of this machine.

    Raises:
        AgentManifestError: An agent of the user's own is described wrongly.
        As `find_work`.
    """
    return find_work(
        spec,
        cache_dir=settings.state_dir,
        env_registry=settings.env_registry,
        own=own_agents(settings.agents_dir),
    )


def find_work(
    spec: JobSpec,
    *,
    cache_dir: Path,
    env_registry: Path | None = None,
    own: Mapping[str, AgentEntry] | None = None,
) -> Work:
    """Find and read everything a spec refers to; needs no fleet.

    Args:
        spec: What was asked for.
        cache_dir: Folder for clones and staged scripts on this machine.
        env_registry: Folder that versions of environment manifests are looked up in; None = there is none.
        own: Agents beside those of this version.

    Raises:
        SourceError: The task source does not exist or cannot be fetched.
        TaskError: Tasks cannot be read; lists every problem at once.
        UnknownAgentError: No agent of that name.
        JobSpecError: An agent's script, a folder of skills, or the environment manifest cannot be used.
    """
    spec = _with_manifest(spec, env_registry)
    agents, scripts = plan_agents(spec.resolved_agents(), own or {}, staging=cache_dir / "scripts")
    skills, own_skills = plan_skills("skills_dir", spec.skills_dir)
    creator, creators = plan_skills("skill_creator_dir", spec.skill_creator_dir)
    source = resolve(spec.tasks, cache_dir=cache_dir / "sources")
    discovery = discover(source.path, room=cache_dir / "converted")
    broken = _asked_for(discovery.broken, spec)
    found = _readable(discovery.tasks, broken, spec)
    return Work(
        spec=spec,
        source=source.info,
        found=found,
        skipped=tuple(item.name for item in broken),
        agents=agents,
        brought={**scripts, **own_skills, **creators},
        skills=skills,
        skill_creator=creator,
    )


def make_draft(work: Work, *, sandbox: str) -> Draft:
    """Check that every task can run on a kind of sandbox, and expand the plan.

    Raises:
        TaskError: Some cannot; lists every reason at once.
    """
    _check_fit([as_run(item.task, work.spec) for item in work.found], sandbox)
    if SANDBOXES[sandbox].runs_commands:
        _check_skills(work)
        _check_turns([as_run(item.task, work.spec) for item in work.found], work)
    tasks, folders = _plan_tasks(work.found)
    plan = Plan(
        job=work.spec.job_name or new_job_name(),
        created_at=utc_now(),
        spec=work.spec,
        sandbox=sandbox,
        needs_gpus=_needs_gpus(work.found, sandbox),
        source=work.source,
        tasks=tasks,
        agents=work.agents,
        skipped=work.skipped,
        skills=work.skills,
        skill_creator=work.skill_creator,
    )
    warnings = tuple(
        f"{item.task.name}: {text}"
        for item in work.found
        for text in (*item.task.warnings, *skill_warnings(item.task, work.spec))
    )
    return Draft(plan, {**folders, **work.brought}, warnings)


def _with_manifest(spec: JobSpec, registry: Path | None) -> JobSpec:
    """Return a spec with the manifest it names in place of its name."""
    if spec.environment_manifest is None:
        return spec
    text = manifest_text(spec.environment_manifest, registry)
    return spec.model_copy(update={"environment_manifest": text})


def _asked_for(broken: Sequence[BrokenTask], spec: JobSpec) -> tuple[BrokenTask, ...]:
    return tuple(
        item for item in broken if is_selected(item.name, include=spec.include, exclude=spec.exclude)
    )


def _readable(
    tasks: Sequence[FoundTask], broken: Sequence[BrokenTask], spec: JobSpec
) -> tuple[FoundTask, ...]:
    if broken and not spec.skip_invalid:
        problems = tuple(f"{item.folder.name}: {text}" for item in broken for text in item.problems)
        fine = len(tasks)
        raise TaskError(
            _headline(broken),
            problems=problems[:_LISTED_PROBLEMS],
            hint=f"{fine} other tasks are fine: --skip-invalid runs them." if fine else "Correct the files.",
        )
    return select(tasks, include=spec.include, exclude=spec.exclude, limit=spec.limit)


def _headline(broken: Sequence[BrokenTask]) -> str:
    if len(broken) == 1:
        return f"Task {broken[0].folder.name!r} cannot be read."
    return f"{len(broken)} tasks cannot be read."


def _check_fit(tasks: Sequence[Task], sandbox: str) -> None:
    able = SANDBOXES[sandbox]
    if not able.runs_commands:
        return
    problems = tuple(
        f"{task.name}: {reason}"
        for task in tasks
        for reason in unsupported(
            task, networks=able.networks, has_compose=able.has_compose, has_gpus=able.has_gpus
        )
    )
    if problems:
        raise TaskError(
            f"Sandbox {sandbox!r} cannot run every task.",
            problems=problems[:_LISTED_PROBLEMS],
            hint="Leave them out with --exclude, or choose another --sandbox.",
        )


def _check_skills(work: Work) -> None:
    """Refuse tasks that have not the skills the job asks for."""
    problems = tuple(
        f"{item.task.name}: {reason}"
        for item in work.found
        for reason in skill_reasons(item.task, item.folder, work.spec)
    )
    if problems:
        raise TaskError(
            f"Not every task can be run with --skill-mode {work.spec.skill_mode}.",
            problems=problems[:_LISTED_PROBLEMS],
            hint="Leave the tasks out with --exclude, or give all of them skills with --skills-dir.",
        )


def _check_turns(tasks: Sequence[Task], work: Work) -> None:
    """Refuse tasks whose turns an agent of the job cannot play."""
    problems = tuple(
        f"{task.name}: {reason}"
        for task in tasks
        for agent in work.agents
        for reason in unplayable(task, agent.spec, work.spec)
    )
    if problems:
        raise TaskError(
            "Not every agent can play every task.",
            problems=tuple(dict.fromkeys(problems))[:_LISTED_PROBLEMS],
            hint="Leave the tasks out with --exclude, or run the agents in jobs of their own.",
        )


def _needs_gpus(found: Sequence[FoundTask], sandbox: str) -> bool:
    """Return whether some task asks for GPUs, on a kind of sandbox that gives them."""
    return SANDBOXES[sandbox].has_gpus and any(item.task.config.sandbox.gpus for item in found)


def _plan_tasks(found: Sequence[FoundTask]) -> tuple[tuple[PlannedTask, ...], dict[str, Path]]:
    tasks, folders = [], {}
    for item in found:
        digest = digest_of(item.folder)
        folders[digest] = item.folder
        tasks.append(PlannedTask(name=item.task.name, slug=slug(item.task.name), digest=digest))
    return tuple(tasks), folders
