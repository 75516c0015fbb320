"""Judging the kept workspaces of a job again: which trials can be, and the plan that does it.

No agent runs, so all but the verifier must be as it was: a verdict on another task would
not be the trial's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.errors import ObjectNotFoundError, TaskError, UsageError
from benchflow_client.plan.draft import Draft
from benchflow_client.plan.identity import CAPS
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.ids import new_job_name
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import (
    Plan,
    PlannedTask,
    PlannedTrial,
    RefusedTrial,
    Regrade,
    RegradedTrial,
    SourceInfo,
)
from benchflow_client.schema.task import Task
from benchflow_client.schema.trial import Outcome, Receipt, TrialResult
from benchflow_client.store.base import Store
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import digest_of, unpack
from benchflow_client.tasks.digest import folder_digest
from benchflow_client.tasks.discover import FoundTask, discover
from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.separate import as_run
from benchflow_client.tasks.source import resolve

__all__ = ["RegradeRequest", "idle_receipts", "regrade_draft"]

_SHOWN_REASONS = 5


@dataclass(frozen=True, slots=True)
class RegradeRequest:
    """What is to be judged again.

    Attributes:
        tasks: Where the tasks with the present verifiers are; None = where the job had them.
        include: Only tasks whose name matches one of these globs; empty = all.
        trial: Only the trial with this id; empty = all.
        reason: Why, for people.
        concurrency: Trials at once.
        sandbox: Kind of sandbox the tests run in; None = the job's.
    """

    tasks: str | None = None
    include: tuple[str, ...] = ()
    trial: str = ""
    reason: str = ""
    concurrency: int = 4
    sandbox: str | None = None


@dataclass(frozen=True, slots=True)
class _Tasks:
    """The tasks as they are now, beside those of the job."""

    source: SourceInfo
    found: Mapping[str, FoundTask]
    broken: Mapping[str, str]
    digests: dict[str, str]  # of those found, by name

    def refusal(self, planned: PlannedTask, spec: JobSpec, sandbox: str, store: Store) -> str:
        """Return why the trials of a task cannot be judged again; empty = they can."""
        if planned.name in self.broken:
            return f"its task cannot be read now: {self.broken[planned.name]}"
        if planned.name not in self.found:
            return f"its task is not in {self.source.path} now"
        now = self.found[planned.name]
        self.digests[planned.name] = digest_of(now.folder)
        if self.digests[planned.name] != planned.digest:
            changed = _changes_since(store, planned, now)
            if changed:
                return f"its task changed in more than its verifier: {', '.join(changed)}"
        able = SANDBOXES[sandbox]
        reasons = unsupported(
            as_run(now.task, spec),
            networks=able.networks,
            has_compose=able.has_compose,
            has_gpus=able.has_gpus,
        )
        return f"its task cannot run on sandbox {sandbox}: {reasons[0]}" if reasons else ""


def regrade_draft(
    job: Plan, results: Iterable[TrialResult], ask: RegradeRequest, *, store: Store, cache_dir: Path
) -> Draft:
    """Return the plan that judges a job's workspaces again, and the folders of its tasks.

    Args:
        job: The job's plan.
        results: Results of its trials, one each.
        ask: What is to be judged again.
        store: Where the job is.
        cache_dir: Folder for clones on this machine.

    Raises:
        UsageError: No trial can be, with the reasons; the job is itself a regrade, or has no such trial.
        SourceError: The tasks cannot be found.
        TaskError: There is no task where they should be.
    """
    if job.regrade is not None:
        raise UsageError(
            f"Job {job.job!r} judged the workspaces of {job.regrade.job!r} and kept none itself.",
            hint=f"Judge those again: bench regrade {job.regrade.job}",
        )
    wanted = _wanted(job, ask)
    tasks = _present(job, ask, cache_dir)
    by_id = {result.trial: result for result in results}
    of_task = {
        task.name: tasks.refusal(task, job.spec, ask.sandbox or job.sandbox, store)
        for task in dict.fromkeys(trial.task for trial in wanted)
    }
    refusals = {trial.id: _refusal(by_id.get(trial.id)) or of_task[trial.task.name] for trial in wanted}
    refused = [RefusedTrial(trial=name, reason=reason) for name, reason in refusals.items() if reason]
    able = [trial for trial in wanted if not refusals[trial.id]]
    if not able:
        raise _nothing_left(job.job, refused)
    plan = _plan(job, ask, tasks, able)
    judged = {(trial.task.name, trial.agent.label, trial.try_number): by_id[trial.id] for trial in able}
    regrade = Regrade(
        job=job.job, reason=ask.reason, trials=tuple(_regraded(plan, judged)), refused=tuple(refused)
    )
    return Draft(plan.model_copy(update={"regrade": regrade}), _folders(plan, tasks), ())


def idle_receipts(plan: Plan) -> list[Receipt]:
    """Return the receipts of the trials of a regrade that judge nothing."""
    judged = {trial.index for trial in plan.regrade.trials} if plan.regrade else set()
    return [
        Receipt(index, Outcome.NOT_STARTED.value, None, "", 0, 0.0, None, None, "")
        for index in range(plan.size)
        if index not in judged
    ]


def _wanted(job: Plan, ask: RegradeRequest) -> list[PlannedTrial]:
    wanted = [trial for trial in map(job.trial, range(job.size)) if _is_wanted(trial, ask)]
    if not wanted:
        raise UsageError(f"Job {job.job!r} has no such trial.", hint=f"See: bench results {job.job} --trials")
    return wanted


def _is_wanted(trial: PlannedTrial, ask: RegradeRequest) -> bool:
    if ask.trial and trial.id != ask.trial:
        return False
    return not ask.include or any(fnmatchcase(trial.task.name, glob) for glob in ask.include)


def _refusal(result: TrialResult | None) -> str:
    if result is None:
        return "it left no result"
    if result.steps:
        return "its task has several steps, and what each of them left is not kept"
    if result.frozen is None:
        return "its workspace was not kept (--freeze-workspace)"
    if result.frozen.left_out:
        return f"its tests were given {', '.join(result.frozen.left_out)} besides, which was not kept"
    return ""


def _present(job: Plan, ask: RegradeRequest, cache_dir: Path) -> _Tasks:
    source = resolve(ask.tasks or job.spec.tasks, cache_dir=cache_dir / "sources")
    discovery = discover(source.path, room=cache_dir / "converted")
    return _Tasks(
        source.info,
        {item.task.name: item for item in discovery.tasks},
        {item.name: item.problems[0] for item in discovery.broken},
        {},
    )


def _changes_since(store: Store, planned: PlannedTask, now: FoundTask) -> tuple[str, ...]:
    """Return what of a task is not as the job had it, verifier and solution aside."""
    with tempfile.TemporaryDirectory(prefix="regrade-") as scratch:
        archive, folder = Path(scratch) / "task.tar", Path(scratch) / planned.name
        try:
            store.get_file(bundle_key(planned.digest), archive)
            unpack(archive, folder, digest=planned.digest)
            before = _rest(read_task(folder), folder)
        except (ObjectNotFoundError, TaskError):
            return ("it cannot be compared, as the job's own copy is gone",)
    after = _rest(now.task, now.folder)
    return tuple(name for name in after if before.get(name) != after[name])


def _rest(task: Task, folder: Path) -> dict[str, Any]:
    """Return what an agent's turn depends on, by the names authors know."""
    config = task.config.model_dump(
        mode="json", include={"agent", "sandbox", "steps", "artifacts", "multi_step_reward_strategy"}
    )
    document = {key: value for key, value in task.document.items() if key != "verifier_strategy"}
    if isinstance(document.get("benchflow"), dict):
        document["benchflow"] = {k: v for k, v in document["benchflow"].items() if k != "verifier"}
    environment = folder / "environment"
    return {
        "instruction": task.instruction,
        **config,
        "document": document,
        "environment/": folder_digest(environment) if environment.is_dir() else "",
    }


def _plan(job: Plan, ask: RegradeRequest, tasks: _Tasks, able: list[PlannedTrial]) -> Plan:
    """Return the smallest plan that has a place for each trial, by the same names."""
    names, labels = {trial.task.name for trial in able}, {trial.agent.label for trial in able}
    name = f"{job.job[:40].rstrip('-_')}-{new_job_name().rpartition('-')[2]}"
    changes = {
        **dict.fromkeys(CAPS),
        "tasks": ask.tasks or job.spec.tasks,
        "concurrency": ask.concurrency,
        "freeze_workspace": False,
        "capture_tokens": "off",
        "job_name": name,
    }
    return Plan(
        job=name,
        created_at=utc_now(),
        spec=job.spec.model_copy(update=changes),
        sandbox=ask.sandbox or job.sandbox,
        needs_gpus=job.needs_gpus and SANDBOXES[ask.sandbox or job.sandbox].has_gpus,
        source=tasks.source,
        tasks=tuple(
            task.model_copy(update={"digest": tasks.digests[task.name]})
            for task in job.tasks
            if task.name in names
        ),
        agents=tuple(agent for agent in job.agents if agent.label in labels),
        skills=job.skills,  # the image is built as it was
    )


def _regraded(plan: Plan, judged: Mapping[tuple[str, str, int], TrialResult]) -> Iterator[RegradedTrial]:
    for trial in map(plan.trial, range(plan.size)):
        result = judged.get((trial.task.name, trial.agent.label, trial.try_number))
        if result is not None and result.frozen is not None:
            yield RegradedTrial(
                index=trial.index,
                trial=result.trial,
                folder=result.rollout_name,
                frozen=result.frozen,
                task_digest=result.task_digest,
                outcome=result.outcome,
                rewards=result.rewards,
            )


def _folders(plan: Plan, tasks: _Tasks) -> dict[str, Path]:
    return {task.digest: tasks.found[task.name].folder for task in plan.tasks}


def _nothing_left(job: str, refused: list[RefusedTrial]) -> UsageError:
    reasons = list(dict.fromkeys(item.reason for item in refused))
    more = f" and {len(reasons) - _SHOWN_REASONS} more reasons" if len(reasons) > _SHOWN_REASONS else ""
    first = refused[0].trial
    return UsageError(
        f"No trial of job {job!r} can be judged again. {first}: {'; '.join(reasons[:_SHOWN_REASONS])}{more}.",
        hint="Run it again with --freeze-workspace, or name the tasks as they were with --tasks DIR.",
    )
