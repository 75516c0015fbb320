"""Runs one attempt of a trial: the only place that knows the order of its phases."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_workers.sandbox.base import Completed, Sandbox
from benchflow_workers.trial import phases
from benchflow_workers.trial.boundary import Boundary, with_failure
from benchflow_workers.trial.captured import with_captured
from benchflow_workers.trial.phases import PhaseObserver, Stopwatch
from benchflow_workers.trial.prepare import Parts, prepare
from benchflow_workers.trial.records import STEPS_DIR, Attempt, Prepared, PreparedStep, Rollout
from benchflow_workers.trial.steps import begin_step, combined, is_passed

logger = logging.getLogger(__name__)


async def run_attempt(
    attempt: Attempt, parts: Parts, folder: Path, observe: PhaseObserver
) -> tuple[Rollout, frozenset[str]]:
    """Run an attempt from its task's bundle to its verdict.

    Whatever fails is recorded in the rollout; only cancellation escapes, after the
    sandbox is closed.

    Args:
        attempt: The attempt.
        parts: What this worker is made of.
        folder: Empty folder on this host; logs and artifacts are collected into it.
        observe: Told each phase as it begins.

    Returns:
        The rollout, and the values that must be redacted from all it left.
    """
    watch = Stopwatch()
    rollout = Rollout()
    async with Boundary() as preparing:
        observe("preparing")
        with watch.time("environment_setup"):
            # Blocks this loop on purpose: the loop is this trial's own and has nothing else to do.
            prepared = prepare(attempt, parts)
    if preparing.failure is not None:
        return replace(with_failure(rollout, preparing.failure), seconds=watch.seconds), frozenset()
    wanted = prepared.sandbox
    async with Boundary() as opening, parts.capacity.hold(wanted.all_cpus, wanted.all_memory_mb):
        observe("building")
        with watch.time("environment_setup"):
            sandbox = await prepared.provider.open(wanted)
        rollout = replace(rollout, sandbox_id=sandbox.id)
        try:
            rollout = await _in_sandbox(_Work(prepared, sandbox, folder, watch, observe), rollout)
        finally:
            await _close(sandbox, attempt, parts.close_timeout_s)
    rollout = with_failure(rollout, opening.failure)
    return replace(rollout, seconds=watch.seconds), prepared.secrets | rollout.secrets


async def _close(sandbox: Sandbox, attempt: Attempt, timeout_s: float) -> None:
    if not await phases.close(sandbox, timeout_s=timeout_s):
        logger.warning(
            "sandbox %s was not removed in time; the reaper will", sandbox.id,
            extra={"action": "sandbox_left", "trial": attempt.trial.id, "job": attempt.plan.job},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Work:
    """What every phase inside a sandbox needs."""

    prepared: Prepared
    sandbox: Sandbox
    folder: Path
    watch: Stopwatch
    observe: PhaseObserver

    def within(self, step: PreparedStep) -> _Work:
        """Return the same for one step, with a folder and a stopwatch of its own."""
        folder = self.folder / STEPS_DIR / step.table.name
        return replace(self, prepared=step.prepared, folder=folder, watch=Stopwatch())

    @contextmanager
    def phase(self, name: str, timing: str) -> Generator[None, None, None]:
        self.observe(name)
        with self.watch.time(timing):
            yield


async def _in_sandbox(work: _Work, rollout: Rollout) -> Rollout:
    """The order of phases: set up, then one round, or one a step."""
    prepared = work.prepared
    async with Boundary() as setting_up:
        with work.phase("setup", "agent_setup"):
            async for captured in phases.set_up(work.prepared, work.sandbox, work.folder):
                prepared = with_captured(work.prepared, captured)
                rollout = replace(rollout, secrets=captured.secrets)
    work = replace(work, prepared=prepared)
    rollout = with_failure(rollout, setting_up.failure)
    if setting_up.failure is None and work.prepared.steps:
        return await _all_steps(work, rollout)
    return await _round(work, rollout, is_ready=setting_up.failure is None)


async def _all_steps(work: _Work, start: Rollout) -> Rollout:
    """The order of steps: each is made ready and goes through a round of its own, until one does not pass."""
    done: list[Rollout] = []
    for step in work.prepared.steps:
        inner = work.within(step)
        await asyncio.to_thread(inner.folder.mkdir, parents=True)
        one = Rollout(sandbox_id=start.sandbox_id)
        async with Boundary() as preparing:
            with inner.phase("setup", "agent_setup"):
                await begin_step(step, work.sandbox, is_first=not done)
        one = with_failure(one, preparing.failure)
        one = await _round(inner, one, is_ready=preparing.failure is None)
        done.append(replace(one, seconds=inner.watch.seconds))
        work.watch.add(inner.watch.seconds)
        if not is_passed(step, one):
            break
    return combined(work.prepared, start, done)


async def _round(work: _Work, rollout: Rollout, *, is_ready: bool) -> Rollout:
    """The order of one round: agent, freeze, tests, collect, judge; what is not ready is collected only."""
    prepared, sandbox = work.prepared, work.sandbox
    if is_ready:
        async with Boundary() as working:
            with work.phase("agent", "agent_execution"):
                rollout = await phases.take_turn(prepared, sandbox, rollout)
        rollout = with_failure(rollout, working.failure)
        is_ready = working.failure is None
    if not prepared.provider.capabilities.runs_commands:
        return rollout
    if is_ready and prepared.is_frozen_after:
        with work.phase("freezing", "freeze"):
            rollout = await phases.keep_workspace(prepared, sandbox, rollout, work.folder)
    tests: Completed | None = None
    if is_ready:
        async with Boundary(is_verifying=True) as verifying:
            with work.phase("verifying", "verifier"):
                tests = await phases.run_tests(prepared, sandbox)
            rollout = replace(rollout, test_output=tests.stdout)
        rollout = with_failure(rollout, verifying.failure)
    async with Boundary(is_verifying=True) as collecting:
        with work.phase("collecting", "collect"):
            warnings = await phases.collect(prepared, sandbox, work.folder)
        rollout = replace(rollout, warnings=(*rollout.warnings, *warnings))
        rollout = phases.with_events(rollout, work.folder)
    if tests is None:
        return rollout
    if collecting.failure is not None:
        return with_failure(rollout, collecting.failure)
    async with Boundary(is_verifying=True) as judging:
        rollout = phases.judge(prepared, tests, rollout, work.folder)
    return with_failure(rollout, judging.failure)
