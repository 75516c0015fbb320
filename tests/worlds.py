"""A job small enough for a unit test: one task folder, its plan, its store, sandboxes that do what they are told."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import pack
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.turn import agent_run
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload
from benchflow_workers.testing import ScriptedSandboxes
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.prepare import Parts
from benchflow_workers.trial.records import Attempt
from benchflow_workers.verifiers.base import Verdict, VerifyContext

REWARD_FILE = "/logs/verifier/reward.txt"
TASK_TOML = 'version = "1.0"\n'
DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\n"


class TurnAgent:
    """An agent whose turn is the one command `take-turn`."""

    def __init__(self, *, is_control: bool = False, runs_as_user: bool = False) -> None:
        self.is_control = is_control
        self.runs_as_user = runs_as_user

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        del context
        return (Upload("/opt/agent", content=b"program"),)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        command = Command(
            ("take-turn",), timeout_s=context.timeout_s or 60.0, user=context.user, env=context.env
        )
        return agent_run(await sandbox.exec(command), kind="turn", command="take-turn")


class FileVerifier:
    """A verifier whose tests are the one command `run-tests`; the verdict is a number in a file."""

    async def run(self, sandbox: Sandbox, context: VerifyContext) -> Completed:
        if context.agent_user is not None:
            await sandbox.kill(context.agent_user)
        return await sandbox.exec(Command(("run-tests",), timeout_s=context.timeout_s, env=context.env))

    def judge(self, context: VerifyContext, run: Completed, logs: Path) -> Verdict:
        if run.timed_out:
            return Verdict(None, Failure(code="verifier.timeout", message="The tests took too long."))
        if not (logs / "reward.txt").is_file():
            return Verdict(None, Failure(code="verifier.no_reward", message="No reward was written."))
        return Verdict({"reward": float((logs / "reward.txt").read_text())}, None, ("read from a file",))


@dataclass
class World:
    """What a worker would find for a job."""

    folder: Path
    plan: Plan
    store: FileStore
    parts: Parts
    sandboxes: ScriptedSandboxes
    environ: dict[str, str] = field(default_factory=dict)

    def attempt(self, index: int = 0, *, number: int = 1, fence: int = 1) -> Attempt:
        return Attempt(self.plan, self.plan.trial(index), number, fence, "box/1", utc_now())

    def scores(self, reward: float) -> None:
        """Let the tests write a reward from now on."""
        self.sandboxes.on("run-tests", files={REWARD_FILE: str(reward).encode()})

    @property
    def scratch(self) -> Path:
        """Return an empty folder for one attempt."""
        place = self.folder / "scratch" / uuid.uuid4().hex
        place.mkdir(parents=True)
        return place


def make_world(
    folder: Path,
    *,
    toml: str = "",
    files: Mapping[str, str] | None = None,
    agent: TurnAgent | None = None,
    agent_spec: Mapping[str, Any] | None = None,
    links: Mapping[str, str] | None = None,
    **spec: Any,
) -> World:
    """Return a world with one task, one agent named `solver`, and tests that give 1.

    Args:
        folder: Empty folder.
        toml: What follows the version in task.toml.
        files: More files of the task.
        agent: Takes the turn.
        agent_spec: More of the agent's spec.
        links: Links of the task, each with its target.
        spec: More of the job's spec.
    """
    task = write_task(folder / "tasks" / "fix-build", toml=toml, files=files or {})
    for name, target in (links or {}).items():
        (task / name).symlink_to(target)
    store, sandboxes = FileStore(folder / "store"), ScriptedSandboxes()
    bundle = pack(task, folder / "bundle.tar")
    store.put_file(bundle_key(bundle.digest), folder / "bundle.tar")
    agent_record = AgentSpec(**{"name": "solver", **(agent_spec or {})})
    plan = Plan(
        job=f"calm-otter-{uuid.uuid4().hex[:8]}",
        created_at=utc_now(),
        spec=JobSpec(tasks="tasks", agent=(agent_record,), **spec),
        sandbox=f"scripted-{uuid.uuid4().hex[:8]}",
        source=SourceInfo(path="tasks"),
        tasks=(PlannedTask(name="fix-build", slug="fix-build", digest=bundle.digest),),
        agents=(PlannedAgent(label="solver", slug="solver", spec=agent_record),),
    )
    taker, environ = agent or TurnAgent(), dict[str, str]()
    parts = Parts(
        bundles=BundleCache(store, folder / "bundles"),
        provider=lambda kind: sandboxes,
        agent=lambda name: taker,
        verifier=lambda task: FileVerifier(),
        environ=environ,
        fleet="tests",
        host_locks=HostLocks(folder / "locks"),
    )
    world = World(folder, plan, store, parts, sandboxes, environ)
    world.scores(1.0)
    return world


def write_task(folder: Path, *, toml: str = "", files: Mapping[str, str] | None = None) -> Path:
    """Write a task folder that can be read; returns it."""
    content = {
        "task.toml": TASK_TOML + toml,
        "instruction.md": "Make the build pass.\n",
        "environment/Dockerfile": DOCKERFILE,
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/sh\ntrue\n",
        **(files or {}),
    }
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
