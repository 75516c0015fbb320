"""The expanded plan of a job: which trials there are, without listing them one by one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import Document
from benchflow_client.schema.ids import attempt_folder, trial_id
from benchflow_client.schema.job import JobSpec


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
    source: SourceInfo = Field(description="Where the tasks came from.")
    tasks: tuple[PlannedTask, ...] = Field(min_length=1, description="Tasks in order of name.")
    agents: tuple[PlannedAgent, ...] = Field(min_length=1, description="Agents in the order given.")
    skipped: tuple[str, ...] = Field(default=(), description="Broken tasks left out by skip_invalid.")

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
