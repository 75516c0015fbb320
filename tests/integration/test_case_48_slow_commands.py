"""On a loaded host every command takes long to begin; no fixed limit of ours ends a trial for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.plan import PlannedAgent
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import pack
from benchflow_workers.agents.registry import agent_of
from benchflow_workers.sandbox.base import Command, Completed, SandboxProvider, SandboxSpec
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.verifiers.registry import verifier_of
from tests.fleets import PLAIN
from tests.worlds import World, make_world

LATENCY_S = 1.0
"""A twelfth of what commands took where trials were lost."""

AGENT_S, TESTS_S = 2.5, 2.75
LIMITS = f"[agent]\ntimeout_sec = {AGENT_S}\n[verifier]\ntimeout_sec = {TESTS_S}\n"
"""The task's own limits, a twelfth of the usual ones."""


@dataclass
class Slow:
    """A provider whose commands begin late, as on a loaded engine; the rest is the real one."""

    real: SandboxProvider
    latency_s: float
    commands: list[Command] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def open(self, spec: SandboxSpec) -> Any:
        return SlowSandbox(self, await self.real.open(spec))


@dataclass
class SlowSandbox:
    provider: Slow
    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def exec(self, command: Command) -> Completed:
        """Begin late; the command's own limit counts from the call."""
        self.provider.commands.append(command)
        await asyncio.sleep(self.provider.latency_s)
        left_s = max(0.01, command.timeout_s - self.provider.latency_s)
        return await self.real.exec(replace(command, timeout_s=left_s))


@pytest.fixture
async def slow(tmp_path: Path) -> AsyncIterator[Slow]:
    real = LocalSandboxes(LocalOptions(tmp_path / "state"))
    yield Slow(real, LATENCY_S)
    await real.close()


def script_agent(world: World) -> PlannedAgent:
    """Return a script agent whose bundle is in the world's store."""
    folder = world.folder / "bot"
    folder.mkdir()
    (folder / "bot.sh").write_text("#!/bin/sh\necho finished > out.txt\n")
    bundle = pack(folder, world.folder / "bot.tar").digest
    world.store.put_file(bundle_key(bundle), world.folder / "bot.tar")
    spec = AgentSpec(name="agents/bot.sh")
    return PlannedAgent(label="bot", slug="bot", spec=spec, bundle=bundle, script="bot.sh")


async def rollout(world: World, provider: Slow, agent: PlannedAgent) -> Rollout:
    """Run the world's task with real agents and verifiers on slow sandboxes."""
    plan = world.plan.model_copy(update={"agents": (agent,)})
    parts = replace(world.parts, provider=lambda kind: provider, agent=agent_of, verifier=verifier_of)
    attempt = replace(world.attempt(), plan=plan, trial=plan.trial(0))
    done, _ = await run_attempt(attempt, parts, world.scratch, lambda phase: None)
    return done


@pytest.mark.root
async def test_agent_passes_although_every_command_begins_late(tmp_path: Path, slow: Slow) -> None:
    world = make_world(tmp_path, toml=LIMITS, files=PLAIN)

    done = await rollout(world, slow, script_agent(world))

    assert (done.rewards, done.failures) == ({"reward": 1.0}, ())
    assert len(slow.commands) >= 4


@pytest.mark.root
async def test_control_passes_although_its_command_begins_late(tmp_path: Path, slow: Slow) -> None:
    world = make_world(tmp_path, toml=LIMITS, files=PLAIN)
    oracle = PlannedAgent(label="oracle", slug="oracle", spec=AgentSpec(name="oracle"))

    done = await rollout(world, slow, oracle)

    assert (done.rewards, done.failures) == ({"reward": 1.0}, ())


@pytest.mark.root
@pytest.mark.parametrize(("factor", "budget_s"), [(1.0, 600.0), (3.0, 1800.0)])
async def test_steps_of_ours_have_minutes_and_the_job_can_give_them_more(
    tmp_path: Path, slow: Slow, factor: float, budget_s: float
) -> None:
    """Only what the task limits has less: the agent's turn and the tests."""
    world = make_world(tmp_path, toml=LIMITS, files=PLAIN, timeout_multiplier=factor)
    slow.latency_s = 0.0

    await rollout(world, slow, script_agent(world))

    limits = [command.timeout_s for command in slow.commands]
    assert set(limits) == {AGENT_S * factor, TESTS_S * factor, budget_s}
    assert limits.count(budget_s) == len(limits) - 2
