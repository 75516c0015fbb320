"""The expanded plan of a job: which trials there are, without listing them one by one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.base import Document
from benchflow_client.schema.ids import attempt_folder, queue_of, trial_id
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.skills import PlannedSkills
from benchflow_client.schema.trial import FrozenWorkspace, Outcome


class SourceInfo(Document):
    """Where the tasks came from."""

    path: str = Field(description="Path as given, or below the repository.")
    repo: str | None = Field(default=None, description="Repository without credentials; None = local folder.")
    ref: str | None = Field(
        default=None, description="Branch, tag or commit asked for; None = default branch."
    )
    commit: str | None = Field(default=None, description="Commit that was read; None = local folder.")


class PlannedTask(Document):
    """A task of a plan."""

    name: str = Field(description="Name of the task folder.")
    slug: str = Field(description="Derived name, unique in the plan, safe for files and images.")
    digest: str = Field(description="SHA-256 of the task's bundle.")


class PlannedAgent(Document):
    """An agent of a plan."""

    label: str = Field(description="Name shown in tables, unique in the plan.")
    slug: str = Field(description="Derived name, unique in the plan.")
    spec: AgentSpec = Field(description="What the job says about it.")
    bundle: str | None = Field(
        default=None, description="SHA-256 of the bundle of a script agent; None = registered."
    )
    script: str | None = Field(default=None, description="File in the bundle that is run; None = registered.")
    definition: AgentDefinition | None = Field(
        default=None, description="How a ready-made agent is installed and started; None = it is none."
    )


class RegradedTrial(Document):
    """A trial of another job whose workspace a verifier judges again."""

    index: int = Field(ge=0, description="Position of the trial that judges it, in this plan.")
    trial: str = Field(description="Its id in its own job.")
    folder: str = Field(description="Folder of its attempt below its own job's.")
    frozen: FrozenWorkspace = Field(description="The workspace its agent left.")
    task_digest: str = Field(description="Digest of the task it was given.")
    outcome: Outcome = Field(description="How it counts in its own job.")
    rewards: dict[str, Any] | None = Field(default=None, description="Its verdict; None = none.")


class RefusedTrial(Document):
    """A trial that no verifier can judge again."""

    trial: str = Field(description="Its id in its own job.")
    reason: str = Field(description="Why, for people.")


class Regrade(Document):
    """What makes a plan a regrade: no agent runs, the workspaces of another job are judged."""

    job: str = Field(description="The job whose workspaces are judged.")
    reason: str = Field(default="", description="Why, for people; empty = not said.")
    trials: tuple[RegradedTrial, ...] = Field(min_length=1, description="In order of index.")
    refused: tuple[RefusedTrial, ...] = Field(default=(), description="Trials that cannot be judged again.")

    def of(self, index: int) -> RegradedTrial | None:
        """Return what the trial at a position judges; None = it is not run."""
        place = bisect_left(self.trials, index, key=lambda trial: trial.index)
        found = self.trials[place] if place < len(self.trials) else None
        return found if found is not None and found.index == index else None


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """One (task, agent, try) of a plan."""

    index: int
    id: str
    task: PlannedTask
    agent: PlannedAgent
    try_number: int  # 1 for the first

    def folder(self, attempt: int, *, epoch: int = 0) -> str:
        """Return the folder of one attempt below the job's folder."""
        return attempt_folder(self.task.slug, self.id, attempt, epoch=epoch)


class Plan(Document):
    """All trials of a job, as tasks x agents x tries.

    Trials are interleaved: every task is tried once by every agent before any is
    tried a second time, so that early numbers already speak of all tasks.
    """

    job: str = Field(description="Name of the job.")
    created_at: datetime = Field(description="When it was planned (UTC).")
    spec: JobSpec = Field(description="What was asked for.")
    sandbox: str = Field(description="Kind of sandbox every trial uses; `auto` is resolved here.")
    needs_gpus: bool = Field(
        default=False, description="Some task asks for GPUs: every trial goes to workers that have them."
    )
    source: SourceInfo = Field(description="Where the tasks came from.")
    tasks: tuple[PlannedTask, ...] = Field(min_length=1, description="Tasks in order of name.")
    agents: tuple[PlannedAgent, ...] = Field(min_length=1, description="Agents in the order given.")
    skipped: tuple[str, ...] = Field(default=(), description="Broken tasks left out by skip_invalid.")
    skills: PlannedSkills | None = Field(
        default=None, description="Skills in place of every task's own; None = those of the tasks, if any."
    )
    skill_creator: PlannedSkills | None = Field(
        default=None, description="Skills an agent has while it writes its own; None = none."
    )
    regrade: Regrade | None = Field(
        default=None, description="Whose workspaces are judged again; None = the agents run."
    )

    @property
    def queue(self) -> str:
        """Return the queue every trial is sent to."""
        return queue_of(self.sandbox, needs_gpus=self.needs_gpus)

    @property
    def size(self) -> int:
        """Return the number of trials."""
        return len(self.tasks) * len(self.agents) * self.spec.tries

    def trial(self, index: int) -> PlannedTrial:
        """Return the trial at a position, 0 <= index < size."""
        if not 0 <= index < self.size:
            raise IndexError(f"trial {index} of {self.size}")
        pair, agent_index = divmod(index, len(self.agents))
        round_index, task_index = divmod(pair, len(self.tasks))
        task, agent = self.tasks[task_index], self.agents[agent_index]
        number = round_index + 1
        return PlannedTrial(index, trial_id(self.job, task.slug, agent.slug, number), task, agent, number)
