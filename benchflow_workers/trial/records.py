"""The frozen records a trial's phases pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.plan import Plan, PlannedTrial
from benchflow_client.schema.recovery import RecoveryRecord, SolverComplete
from benchflow_client.schema.separate import SeparateRecord
from benchflow_client.schema.task import Task
from benchflow_client.schema.task_steps import StepTable
from benchflow_client.schema.trial import AgentUsage, FrozenWorkspace
from benchflow_client.schema.turns import RoundRow, SessionResult
from benchflow_client.store.base import Store
from benchflow_workers.agents.base import Agent, AgentContext, SkillSet
from benchflow_workers.sandbox.base import SandboxProvider, SandboxSpec
from benchflow_workers.trial.carry import Carried
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.live import LiveTrajectory
from benchflow_workers.trial.session import Session
from benchflow_workers.trial.talk import Talk
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
class Kept:
    """What an agent left in another attempt or job, judged without it.

    Attributes:
        job: Job that holds it.
        trial: Its trial there, for people.
        folder: Folder of the attempt that holds it.
        frozen: The workspace, or the submission files.
        solver: What is known of the agent's part; None = it is another job's.
        error: Why the attempt that holds it reached no verdict; None = it left no result.
    """

    job: str
    trial: str
    folder: str
    frozen: FrozenWorkspace
    solver: SolverComplete | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the work of an attempt's agent outlives the attempt.

    Attributes:
        store: Where it is kept.
        attempt: The attempt.
        kept: The work of an earlier attempt, in place of an agent's turn; None = the agent runs.
    """

    store: Store
    attempt: Attempt
    kept: Kept | None


@dataclass(frozen=True, slots=True)
class Separate:
    """A sandbox of the tests' own, resolved before any sandbox exists.

    Attributes:
        sandbox: What is asked of the provider; the workspace is where the agent's turns out to be.
        image_source: Key or file its image comes from, for people.
        includes: Paths that are carried into it besides workspace and artifacts.
    """

    sandbox: SandboxSpec
    image_source: str
    includes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handover:
    """What the tests' own sandbox is given of the agent's.

    Attributes:
        workdir: The agent's workspace.
        carried: Its work on this host; None = it is too much.
        too_much: Which limit it passed, as the end of a sentence; empty = none.
        writes: Files the agent wrote elsewhere, and how many; None = not known.
    """

    workdir: str
    carried: Carried | None
    too_much: str
    writes: tuple[tuple[str, ...], int] | None


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
        services_env: Variables of the worker for the services of the task's manifest.
        host_locks: Locks that setup commands of this host take turns by.
        secrets: Values that must not appear in anything that is written.
        steps: The steps of a multi-step task, in order; empty = one turn, one verdict.
        is_frozen_after: The workspace is kept as the agent leaves it.
        sessions: The sessions that scenes are played in, in order; empty = the agent takes one turn.
        talk: Who talks to the agent in rounds; None = nobody.
        separate: The tests' own sandbox; None = they run in the agent's.
        recovery: How its agent's work can be verified again; None = only by running the agent again.
        live: Keeps what the agents do while they work; None = nobody does.
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
    services_env: Mapping[str, str] = field(default_factory=dict)
    sessions: tuple[Session, ...] = ()
    talk: Talk | None = None
    separate: Separate | None = None
    recovery: Recovery | None = None
    live: LiveTrajectory | None = None

    @property
    def players(self) -> tuple[Session, ...]:
        """Return everyone who may work in the sandbox, the agent of the job first."""
        alone = Session((), None, None, "", self.agent, self.agent_context)
        return (alone, *self.sessions, *(() if self.talk is None else self.talk.sessions))

    @property
    def all_cpus(self) -> float | None:
        """Return the cores of the larger of the rollout's sandboxes: there is one at a time; None = no limit."""
        needs = [spec.all_cpus for spec in self._sandboxes]
        return None if None in needs else max(need for need in needs if need is not None)

    @property
    def all_memory_mb(self) -> int | None:
        """Return the memory of the larger of the rollout's sandboxes, in MiB; None = no limit."""
        needs = [spec.all_memory_mb for spec in self._sandboxes]
        return None if None in needs else max(need for need in needs if need is not None)

    @property
    def gpus(self) -> int:
        """Return the GPUs of the rollout's sandbox that needs most: there is one at a time."""
        return max(spec.gpus for spec in self._sandboxes)

    def on(self, devices: Sequence[str]) -> Prepared:
        """Return the same with the GPUs it was given; each sandbox gets as many as it needs."""
        sandbox = replace(self.sandbox, devices=tuple(devices[: self.sandbox.gpus]))
        if self.separate is None:
            return replace(self, sandbox=sandbox)
        own = self.separate.sandbox
        tests = replace(self.separate, sandbox=replace(own, devices=tuple(devices[: own.gpus])))
        return replace(self, sandbox=sandbox, separate=tests)

    @property
    def _sandboxes(self) -> tuple[SandboxSpec, ...]:
        return (self.sandbox,) if self.separate is None else (self.sandbox, self.separate.sandbox)


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
        sessions: What each begun session of several came to, in order.
        rounds: What each round that ended came to, in order.
        n_events_read: Events of the agent's own file that are among `events` already.
        handover: What waits for the tests' own sandbox, in the folder `carried_room` names; None = nothing.
        separate: What became of that sandbox; None = there was none.
        recovery: What came of the work of an earlier attempt; None = it was its own.
        is_solver_kept: A later attempt can judge the agent's work, which is in the store.
        secrets: Values found on the way that must not appear in anything that is written.
        is_broken: The agent's turn broke off, so that no tests are run.
        agent_version: What the agent says it is; empty = nothing.
        skills: The skills of the session that was played last; None = it had none.
    """

    sandbox_id: str | None = None
    is_broken: bool = False
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
    sessions: tuple[SessionResult, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    n_events_read: int = 0
    handover: Handover | None = None
    separate: SeparateRecord | None = None
    recovery: RecoveryRecord | None = None
    is_solver_kept: bool = False
    secrets: frozenset[str] = frozenset()
    agent_version: str = ""
    skills: SkillSet | None = None


def frozen_room(folder: Path) -> Path:
    """Return the folder beside an attempt's in which nothing from a sandbox is put unseen."""
    return folder.with_name(f"{folder.name}.frozen")


def carried_room(folder: Path) -> Path:
    """Return the folder beside an attempt's that holds an agent's work on its way to the tests."""
    return folder.with_name(f"{folder.name}.carried")


def captured_room(folder: Path) -> Path:
    """Return the folder beside an attempt's for what its setup commands leave to be kept."""
    return folder.with_name(f"{folder.name}.captured")
