"""What an agent is to a trial: files it needs, and one turn in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.locked_paths import LOCKED_PATHS
from benchflow_client.schema.task import Task
from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.sandbox.network import NetworkPolicy

LOGS_DIR = "/logs/agent"
"""Folder in the sandbox for the agent's own logs; collected after the tests."""

INSTRUCTION_PATH = "/instruction.md"
"""Where the prompt stands in every sandbox."""


def prompt_bytes(prompt: str) -> bytes:
    """Return a prompt as it was written: bytes of an instruction that are no UTF-8 come back as they were."""
    return prompt.encode("utf-8", "surrogateescape")


class LiveEvents(Protocol):
    """Events of a turn that still grow."""

    @property
    def n_changes(self) -> int:
        """How often they changed."""
        ...

    def events(self) -> Sequence[Mapping[str, Any]]:
        """Return those there are; each can be written as UTF-8 JSON."""
        ...


class Live(Protocol):
    """Keeps the events of agents that are at work."""

    def follow(self, source: LiveEvents) -> AbstractAsyncContextManager[None]:
        """Keep the events of a turn for as long as the block runs; raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class SkillSet:
    """Skills an agent has in a turn.

    Attributes:
        source: Folder of them on the worker; None = `origin` holds them.
        target: Folder of them in the sandbox; root's.
        paths: Folders in which the agent looks for skills; `$HOME` and `$WORKSPACE` stand for its own.
        origin: Folder in the sandbox from which they are taken when the turn begins.
        is_kept: What was taken from there is kept with the trial.
    """

    source: Path | None
    target: str
    paths: tuple[str, ...]
    origin: str = ""
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class AgentContext:
    """What an agent may know about its trial.

    Attributes:
        task: The task.
        task_dir: Its unpacked folder on the worker.
        spec: What the job says about the agent.
        script: File on the worker that a script agent runs; None = a registered agent.
        env: Resolved variables of the agent.
        oracle_env: Resolved variables of the reference solution.
        timeout_s: Seconds for the turn, multiplier applied; None = no cap of its own.
        user: Who runs the agent.
        prompts: What it is told, in order, in one session; the first also stands in `INSTRUCTION_PATH`.
        locked: Paths that are root's alone while it works.
        network: What the turn may reach.
        mcp_servers: Tool servers of the task by name, resolved; the same stand in a file of the sandbox.
        definition: How a ready-made agent is installed and started; None = it is none.
        live: Keeps its events while it works; None = nobody does.
        skills: Skills it has; None = none.
    """

    task: Task
    task_dir: Path
    spec: AgentSpec
    script: Path | None
    env: Mapping[str, str]
    oracle_env: Mapping[str, str]
    timeout_s: float | None
    user: str
    prompts: tuple[str, ...]
    locked: Sequence[str] = LOCKED_PATHS
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    mcp_servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    definition: AgentDefinition | None = None
    live: Live | None = None
    skills: SkillSet | None = None

    @property
    def is_web_open(self) -> bool:
        """Whether nothing keeps it from the internet, so that it may have its tools for it."""
        return self.network.mode == "public"


def followed(context: AgentContext, source: LiveEvents) -> AbstractAsyncContextManager[None]:
    """Return a block in which a turn's events are kept, where somebody keeps them."""
    return nullcontext() if context.live is None else context.live.follow(source)


@dataclass(frozen=True, slots=True)
class AgentRun:
    """What an agent's turn left.

    Attributes:
        exit_code: Exit code; None = nothing was run, or it was killed.
        timed_out: The deadline ended it. The tests run all the same.
        events: Trajectory, one JSON object per event.
        log: What it printed, raw; capped by the sandbox.
        usage: What it used, as far as known.
        failures: What went wrong besides a deadline and a bad exit code, first cause first.
        is_broken: The turn came to no end of its own, so what it left must not be scored.
        version: What the agent says it is; empty = nothing.
    """

    exit_code: int | None
    timed_out: bool
    events: Sequence[Mapping[str, Any]] = ()
    log: bytes = b""
    usage: AgentUsage = field(default_factory=AgentUsage)
    failures: Sequence[Failure] = ()
    is_broken: bool = False
    version: str = ""


class Agent(Protocol):
    """One kind of agent; stateless, so one object serves every trial of a worker."""

    @property
    def is_control(self) -> bool:
        """Whether it is a control (oracle, nop) and not an agent under test."""
        ...

    @property
    def runs_as_user(self) -> bool:
        """Whether its turn runs as the unprivileged user (oracle and nop do not)."""
        ...

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the files it needs; they are placed with the first transfer.

        Raises:
            AgentError: `agent.no_solution`, `agent.not_runnable`.
        """
        ...

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Take the turn: work through every prompt, within one time limit.

        Raises:
            AgentError: `agent.not_runnable` when it could not be started at all.
            SandboxError: The sandbox failed under it.
        """
        ...


@runtime_checkable
class OnWorker(Protocol):
    """An agent whose own code runs on the worker and not in the sandbox."""

    @property
    def is_on_worker(self) -> bool:
        """Whether it does."""
        ...
