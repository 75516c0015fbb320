"""A task folder run whole in a real sandbox, as a worker runs it, with its files in a store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.skills import PlannedSkills
from benchflow_client.schema.trial import TrialResult
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import pack
from benchflow_client.tasks.skills import skill_names
from benchflow_workers.agents.registry import agent_of
from benchflow_workers.sandbox.base import SandboxProvider
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.capacity import Capacity
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.prepare import Parts
from benchflow_workers.trial.recorder import result_of, write_attempt
from benchflow_workers.trial.records import Attempt, Rollout
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.verifiers.registry import verifier_of


@dataclass(frozen=True)
class Ran:
    """One attempt: its rollout, its result, its folder in the store."""

    rollout: Rollout
    result: TrialResult
    folder: Path

    def said(self) -> str:
        """Return what happened, for the failure of a test."""
        return f"{self.rollout.failures}\n{self.rollout.agent_log!r}\n{self.rollout.test_output!r}"


@dataclass(frozen=True)
class Rollouts:
    """Runs tasks with one provider.

    Attributes:
        provider: Makes the sandboxes.
        kind: What it is called.
        folder: Empty folder for all files.
        capacity: What the sandboxes may take together.
    """

    provider: SandboxProvider
    kind: str
    folder: Path
    capacity: Capacity = field(default_factory=Capacity)

    async def run(
        self,
        task: Path,
        program: str | None = None,
        *,
        number: int = 1,
        job: str = "",
        environ: Mapping[str, str] | None = None,
        skills: Path | None = None,
        **spec: Any,
    ) -> Ran:
        """Run a task once.

        Args:
            task: Its folder.
            program: Text of a script agent; None = the oracle.
            number: Which attempt of the trial it is.
            job: Name of the job; empty = a new one.
            environ: The worker's variables.
            skills: Folder of skills the job brings: for the task, or for writing some.
            spec: More of the job's spec.
        """
        store, room = FileStore(self.folder / "store"), self.folder / uuid.uuid4().hex
        room.mkdir()
        bundle = pack(task, room / "bundle.tar")
        store.put_file(bundle_key(bundle.digest), room / "bundle.tar")
        agent = _agent(store, room, program)
        brought = None if skills is None else _skills(store, room, skills)
        plan = Plan(
            job=job or f"conformance-{uuid.uuid4().hex[:8]}",
            created_at=utc_now(),
            spec=JobSpec(tasks="tasks", agent=(agent.spec,), **spec),
            sandbox=self.kind,
            source=SourceInfo(path="tasks"),
            tasks=(PlannedTask(name=task.name, slug=task.name, digest=bundle.digest),),
            agents=(agent,),
            skills=brought if spec.get("skill_mode") == "with-skill" else None,
            skill_creator=brought if spec.get("skill_mode") == "self-gen" else None,
        )
        parts = Parts(
            bundles=BundleCache(store, self.folder / "bundles"), provider=lambda _: self.provider, agent=agent_of,
            verifier=verifier_of, environ=environ or {}, fleet="tests", host_locks=HostLocks(self.folder / "locks"),
            capacity=self.capacity,
        )  # fmt: skip
        attempt = Attempt(plan, plan.trial(0), number, number, "box/1", utc_now())
        scratch = room / "scratch"
        scratch.mkdir()
        rollout, secrets = await run_attempt(attempt, parts, scratch, lambda phase: None)
        redactor = Redactor(secrets)
        result = result_of(attempt, rollout, redactor)
        write_attempt(store, result, rollout, folder=scratch, redactor=redactor)
        return Ran(rollout, result, self.folder / "store" / plan.job / attempt.folder)


def _skills(store: FileStore, room: Path, folder: Path) -> PlannedSkills:
    packed = pack(folder, room / "skills.tar")
    store.put_file(bundle_key(packed.digest), room / "skills.tar")
    return PlannedSkills(bundle=packed.digest, names=skill_names(folder))


def _agent(store: FileStore, room: Path, program: str | None) -> PlannedAgent:
    if program is None:
        return PlannedAgent(label="oracle", slug="oracle", spec=AgentSpec(name="oracle"))
    (room / "agent").mkdir()
    (room / "agent" / "solver.sh").write_text(program)
    packed = pack(room / "agent", room / "agent.tar")
    store.put_file(bundle_key(packed.digest), room / "agent.tar")
    spec = AgentSpec(name="./solver.sh")
    return PlannedAgent(label="solver", slug="solver", spec=spec, bundle=packed.digest, script="solver.sh")
