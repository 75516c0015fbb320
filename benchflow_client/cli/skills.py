"""`bench skills`: evaluate a skill with its own questions, or tell what skills changed between two jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import with_spec_flags
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.cli.run import INTERRUPTED, VIEW, exit_code, follow, interrupted, view_flag
from benchflow_client.handle import JobHandle
from benchflow_client.plan.identity import differences
from benchflow_client.report import Line, lift_record, lift_report
from benchflow_client.results.lift import AgentLift, Outcomes, skill_lift
from benchflow_client.schema.job import JobSpec
from benchflow_client.skill_eval import Evaluation, outcomes_of, plan_evaluation
from benchflow_client.wording import plural

EVAL_VIEW = {
    "file": VIEW["file"],
    "json": VIEW["json"],
    "no_baseline": view_flag("no_baseline", bool, "Run the agents with the skill only."),
    "exact_match": view_flag(
        "exact_match", bool, "Grade every case by its ground_truth, also where it asks for a judge."
    ),
}
"""Flags of an evaluation that are no part of its jobs."""

_SKILL_KEYS = frozenset({"skill_mode", "skills_dir", "skill_creator_dir"})

skills = App(name="skills", help="Evaluate a skill, or tell what skills changed.", help_format="plaintext")


def evaluate(spec: JobSpec, *, json: bool, no_baseline: bool, exact_match: bool) -> int:
    """Run agents on a skill's own questions (DIR/evals/evals.json), with the skill and without it."""
    with Client(jobs_dir=Path(spec.jobs_dir)) as client:
        asked = plan_evaluation(spec, client.settings, has_baseline=not no_baseline, is_exact=exact_match)
        _announce(asked)
        arms = [client.submit(arm) for arm in (asked.with_skill, asked.baseline) if arm is not None]
        try:
            summaries = [follow(handle) for handle in arms]
        except KeyboardInterrupt:
            for handle in arms:
                interrupted(client, handle)
            return INTERRUPTED
        for handle in arms:
            handle.fetch(Path(spec.jobs_dir) / handle.name)
        for summary in summaries:
            render.render_failures(summary)
        lifts = _lifts(arms)
    jobs = [handle.name for handle in arms]
    _show(lifts, {"skill": asked.evals.skill_name, "jobs": jobs}, is_json=json)
    return max(map(exit_code, summaries))


def lift(
    with_skill: Annotated[str, Parameter(help="Job whose agents had skills.")],
    without: Annotated[str, Parameter(help="Job of the same agents on the same tasks without.")],
    /,
    *,
    jobs_dir: JobsDir = Path("jobs"),
    json: Json = False,
) -> int:
    """Tell what skills changed: the trials of one job beside those of another."""
    with Client(jobs_dir=jobs_dir) as client:
        handles = [client.stored_job(name) for name in (with_skill, without)]
        one, two = (outcomes_of(handle) for handle in handles)
    lifts = skill_lift(one, two)
    _show(lifts, {"jobs": [one.plan.job, two.plan.job]}, is_json=json)
    other = _other_differences(one, two)
    if other:
        render.render_warnings([f"the jobs differ in more than skills: {text}" for text in other])
    return 0


def _announce(asked: Evaluation) -> None:
    cases, arms = (
        plural(len(asked.evals.cases), "case"),
        "with and without it" if asked.baseline else "with it",
    )
    render.render_report((
        Line(f"{asked.evals.skill_name}: {cases}, {arms} · tasks {asked.folders.tasks}", label="skill"),
    ))  # fmt: skip
    render.render_warnings(asked.warnings)


def _lifts(arms: Sequence[JobHandle]) -> tuple[AgentLift, ...]:
    found = [outcomes_of(handle) for handle in arms]
    return skill_lift(found[0], found[1] if len(found) > 1 else None)


def _show(lifts: tuple[AgentLift, ...], about: dict[str, Any], *, is_json: bool) -> None:
    if is_json:
        render.print_json({**about, "agents": lift_record(lifts)})
    render.render_report(lift_report(lifts))
    names = about["jobs"]
    render.render_report((
        Line(f"{' · '.join(names)} · next: bench results {names[0]} --trials", label="jobs"),
    ))


def _other_differences(one: Outcomes, two: Outcomes) -> list[str]:
    """Return in what two jobs differ besides the skills their agents have."""
    return [str(found) for found in differences(two.plan, one.plan) if found.key not in _SKILL_KEYS]


skills.command(
    with_spec_flags(
        evaluate, EVAL_VIEW, tasks="Folder of a skill with evals/evals.json.", left_out=_SKILL_KEYS
    ),
    name="eval",
    help=evaluate.__doc__,
)
skills.command(lift, name="lift")
