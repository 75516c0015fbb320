"""Runs one attempt of a trial: the only place that knows the order of its phases."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_workers.sandbox.base import Completed, Sandbox
from benchflow_workers.trial import phases
from benchflow_workers.trial.boundary import Boundary, with_failure
from benchflow_workers.trial.phases import PhaseObserver, Stopwatch
from benchflow_workers.trial.prepare import Parts, prepare
from benchflow_workers.trial.records import Attempt, Prepared, Rollout

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
    async with Boundary() as opening, parts.capacity.hold(wanted.cpus, wanted.memory_mb):
        observe("building")
        with watch.time("environment_setup"):
            sandbox = await prepared.provider.open(wanted)
        rollout = replace(rollout, sandbox_id=sandbox.id)
        try:
            rollout = await _in_sandbox(_Step(prepared, sandbox, folder, watch, observe), rollout)
        finally:
            await _close(sandbox, attempt, parts.close_timeout_s)
    rollout = with_failure(rollout, opening.failure)
    return replace(rollout, seconds=watch.seconds), prepared.secrets


async def _close(sandbox: Sandbox, attempt: Attempt, timeout_s: float) -> None:
    if not await phases.close(sandbox, timeout_s=timeout_s):
        logger.warning(
            "sandbox %s was not removed in time; the reaper will", sandbox.id,
            extra={"action": "sandbox_left", "trial": attempt.trial.id, "job": attempt.plan.job},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Step:
    """What every phase inside a sandbox needs."""

    prepared: Prepared
    sandbox: Sandbox
    folder: Path
    watch: Stopwatch
    observe: PhaseObserver

    @contextmanager
    def phase(self, name: str, timing: str) -> Generator[None, None, None]:
        self.observe(name)
        with self.watch.time(timing):
            yield


async def _in_sandbox(step: _Step, rollout: Rollout) -> Rollout:
    """The order of phases: set up, agent, tests, collect, judge."""
    prepared, sandbox = step.prepared, step.sandbox
    async with Boundary() as before_verdict:
        with step.phase("setup", "agent_setup"):
            await phases.set_up(prepared, sandbox)
        with step.phase("agent", "agent_execution"):
            rollout = await phases.take_turn(prepared, sandbox, rollout)
    rollout = with_failure(rollout, before_verdict.failure)
    if not prepared.provider.capabilities.runs_commands:
        return rollout
    tests: Completed | None = None
    if before_verdict.failure is None:
        async with Boundary(is_verifying=True) as verifying:
            with step.phase("verifying", "verifier"):
                tests = await phases.run_tests(prepared, sandbox)
            rollout = replace(rollout, test_output=tests.stdout)
        rollout = with_failure(rollout, verifying.failure)
    async with Boundary(is_verifying=True) as collecting:
        with step.phase("collecting", "collect"):
            warnings = await phases.collect(prepared, sandbox, step.folder)
        rollout = replace(rollout, warnings=(*rollout.warnings, *warnings))
        rollout = phases.with_events(rollout, step.folder)
    if tests is None:
        return rollout
    if collecting.failure is not None:
        return with_failure(rollout, collecting.failure)
    async with Boundary(is_verifying=True) as judging:
        rollout = phases.judge(prepared, tests, rollout, step.folder)
    return with_failure(rollout, judging.failure)
