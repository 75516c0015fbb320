"""Evaluates a skill: its own questions as tasks, run by the same agents with the skill and without it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import UsageError
from benchflow_client.handle import JobHandle, StoredJob
from benchflow_client.results.lift import Outcomes
from benchflow_client.schema.ids import new_job_name
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.skill_evals import SkillEvals
from benchflow_client.schema.skills import NO_SKILL
from benchflow_client.settings import Settings
from benchflow_client.tasks.skill_evals import EvalTasks, read_evals, write_eval_tasks
from benchflow_client.wording import name_some

__all__ = ["Evaluation", "outcomes_of", "plan_evaluation"]

_LONGEST_NAME: Final = 54
"""What stays of a job's name beside the arm: names have 63 characters at most."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is run to evaluate a skill.

    Attributes:
        evals: Its questions.
        folders: Tasks and skill on this machine.
        with_skill: The job with the skill.
        baseline: The same without it; None = it is not run.
        warnings: What a reader of the numbers should know.
    """

    evals: SkillEvals
    folders: EvalTasks
    with_skill: JobSpec
    baseline: JobSpec | None
    warnings: tuple[str, ...]


def plan_evaluation(
    spec: JobSpec, settings: Settings, *, has_baseline: bool = True, is_exact: bool = False
) -> Evaluation:
    """Return the jobs that evaluate a skill.

    Args:
        spec: What to run; its tasks are the skill's folder.
        settings: Of this machine.
        has_baseline: Whether the agents are run without the skill too.
        is_exact: Whether cases that ask for a judge are graded by their ground truth alone.

    Raises:
        UsageError: The folder is no skill with questions, they need a judge, or the spec says
            itself which skills there are.
    """
    if spec.skill_mode != NO_SKILL:
        raise UsageError(
            "An evaluation sets --skill-mode itself.", hint="Leave --skill-mode and --skills-dir out."
        )
    skill = Path(spec.tasks).expanduser()
    evals = read_evals(skill)
    warnings = _ungraded(evals, is_exact=is_exact)
    folders = write_eval_tasks(evals, skill, settings.state_dir / "skill-evals")
    name = (spec.job_name or new_job_name())[:_LONGEST_NAME].rstrip("-_")
    both = spec.model_copy(update={"tasks": str(folders.tasks)})
    with_skill = {"skill_mode": "with-skill", "skills_dir": str(folders.skills), "job_name": f"{name}-with"}
    return Evaluation(
        evals=evals,
        folders=folders,
        with_skill=both.model_copy(update=with_skill),
        baseline=both.model_copy(update={"job_name": f"{name}-without"}) if has_baseline else None,
        warnings=warnings,
    )


def outcomes_of(job: JobHandle | StoredJob) -> Outcomes:
    """Return what a job came to, as a lift is made of it."""
    return Outcomes(job.results().plan, [trial.receipt for trial in job.trials()])


def _ungraded(evals: SkillEvals, *, is_exact: bool) -> tuple[str, ...]:
    """Refuse cases that a judge would grade, and return a warning for those that nobody can pass."""
    judged = [case.id for case in evals.cases if case.expected_behavior]
    if judged and not is_exact:
        raise UsageError(
            f"Cases with expected_behavior are graded by a judge, which this version has not: {name_some(judged)}.",
            hint="--exact-match grades every case by its ground_truth alone.",
        )
    hopeless = [case.id for case in evals.cases if not case.ground_truth.strip()]
    return (f"without ground_truth a case gets 0: {name_some(hopeless)}",) if hopeless else ()
