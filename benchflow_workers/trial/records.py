"""The frozen records a trial's phases pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.plan import Plan, PlannedTrial
from benchflow_client.schema.task import Task
from benchflow_client.schema.task_steps import StepTable
from benchflow_client.schema.trial import AgentUsage, FrozenWorkspace
from benchflow_workers.agents.base import Agent, AgentContext
from benchflow_workers.sandbox.base import SandboxProvider, SandboxSpec
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.verifiers.base import Verifier, VerifyContext

STEPS_DIR = "steps"
"""Folder below the attempt's with one folder for each step of a multi-step task."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a trial by this worker.

    Attributes:
        plan: The job's plan.
        trial: The trial.
        number: 1 for the first execution.
        fence: The lease's fence; it also names the attempt's folder.
        worker: Name of this worker.
        started_at: Start of the attempt (UTC).
        epoch: How often the job was reopened before.
    """

    plan: Plan
    trial: PlannedTrial
    number: int
    fence: int
    worker: str
    started_at: datetime
    epoch: int = 0

    @property
    def folder(self) -> str:
        """Return the folder of this attempt below the job's folder."""
        return self.trial.folder(self.fence, epoch=self.epoch)


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """A task unpacked on this host."""

    task: Task
    path: Path
    environment_digest: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a rollout needs, resolved before any sandbox exists.

    Attributes:
        folder: The task on this host.
        provider: Where the sandbox comes from.
        sandbox: What is asked of it.
        agent: Who takes the turn.
        agent_context: What the agent may know.
        verifier: Who judges.
        verify_context: What the verifier may know.
        setup_env: Resolved variables for setup commands, in their order.
        host_locks: Locks that setup commands of this host take turns by.
        secrets: Values that must not appear in anything that is written.
        steps: The steps of a multi-step task, in order; empty = one turn, one verdict.
        is_frozen_after: The workspace is kept as the agent leaves it.
    """

    folder: TaskFolder
    provider: SandboxProvider
    sandbox: SandboxSpec
    agent: Agent
    agent_context: AgentContext
    verifier: Verifier
    verify_context: VerifyContext
    setup_env: Sequence[Mapping[str, str]]
    host_locks: HostLocks
    secrets: frozenset[str]
    steps: tuple[PreparedStep, ...] = ()
    is_frozen_after: bool = False


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """One step of a multi-step task, resolved before any sandbox exists.

    Attributes:
        table: What it declares.
        prepared: The task as this step sees it: its instruction, tests, solution, agent, verifier.
        workdir: Folder on this host whose content goes into the workspace before it; None = none.
    """

    table: StepTable
    prepared: Prepared
    workdir: Path | None


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an attempt has come to; every phase returns a new one.

    Attributes:
        sandbox_id: The provider's id; None = never started.
        failures: What went wrong, first cause first.
        rewards: The verdict; None = none.
        warnings: What a reader of the number should know.
        events: Trajectory.
        agent_log: What the agent printed, raw.
        agent_exit_code: Its exit code; None = nothing ran, or it was killed.
        usage: What it used.
        test_output: What the tests printed, raw; None = they did not run.
        seconds: Wall clock by phase.
        steps: What each begun step of a multi-step task came to, by name, in order.
        frozen: The workspace that was kept, in the folder `frozen_room` names; None = none.
        secrets: Values found on the way that must not appear in anything that is written.
    """

    sandbox_id: str | None = None
    failures: tuple[Failure, ...] = ()
    rewards: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    events: Sequence[Mapping[str, Any]] = ()
    agent_log: bytes = b""
    agent_exit_code: int | None = None
    usage: AgentUsage = field(default_factory=AgentUsage)
    test_output: bytes | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[tuple[str, Rollout], ...] = ()
    frozen: FrozenWorkspace | None = None
    secrets: frozenset[str] = frozenset()


def frozen_room(folder: Path) -> Path:
    """Return the folder beside an attempt's in which nothing from a sandbox is put unseen."""
    return folder.with_name(f"{folder.name}.frozen")


def captured_room(folder: Path) -> Path:
    """Return the folder beside an attempt's for what its setup commands leave to be kept."""
    return folder.with_name(f"{folder.name}.captured")
