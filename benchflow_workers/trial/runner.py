"""Runs one attempt of a trial: the only place that knows the order of its phases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.separate import SeparateStatus
from benchflow_workers.sandbox.base import Completed, Sandbox
from benchflow_workers.trial import phases, separate
from benchflow_workers.trial.boundary import Boundary, with_failure
from benchflow_workers.trial.captured import with_captured
from benchflow_workers.trial.carry import Load
from benchflow_workers.trial.phases import PhaseObserver, Stopwatch
from benchflow_workers.trial.prepare import Parts, prepare
from benchflow_workers.trial.records import (
    STEPS_DIR,
    Attempt,
    Handover,
    Prepared,
    PreparedStep,
    Rollout,
    carried_room,
)
from benchflow_workers.trial.recovery import recovered
from benchflow_workers.trial.rounds import (
    NOBODY_LOOKED,
    begin_talk,
    look,
    next_session,
    round_result,
    with_round,
)
from benchflow_workers.trial.steps import begin_step, combined, is_passed
from benchflow_workers.trial.talk import Talk
from benchflow_workers.trial.turns import ended_well, play, with_rest_unplayed

logger = logging.getLogger(__name__)

Collect = Callable[[Prepared, Sandbox, Path], Awaitable[tuple[str, ...]]]
"""Copies what is to be kept out of a sandbox; returns what could not be copied whole."""


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
    needs = prepared.all_cpus, prepared.all_memory_mb
    async with Boundary() as opening, parts.capacity.hold(*needs, gpus=prepared.gpus) as devices:
        prepared = prepared.on(devices)
        observe("building")
        with watch.time("environment_setup"):
            sandbox = await prepared.provider.open(prepared.sandbox)
        rollout = replace(rollout, sandbox_id=sandbox.id)
        work = _Work(prepared, sandbox, folder, watch, observe, partial(_close, attempt, parts))
        rollout = await _in_sandboxes(work, rollout)
    rollout = recovered(prepared, with_failure(rollout, opening.failure))
    return replace(rollout, seconds=watch.seconds), prepared.secrets | rollout.secrets


async def _close(attempt: Attempt, parts: Parts, sandbox: Sandbox) -> None:
    if not await phases.close(sandbox, timeout_s=parts.close_timeout_s):
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
    close: Callable[[Sandbox], Awaitable[None]]

    def within(self, step: PreparedStep) -> _Work:
        """Return the same for one step, with a folder and a stopwatch of its own."""
        folder = self.folder / STEPS_DIR / step.table.name
        return replace(self, prepared=step.prepared, folder=folder, watch=Stopwatch())

    @contextmanager
    def phase(self, name: str, timing: str) -> Generator[None, None, None]:
        self.observe(name)
        with self.watch.time(timing):
            yield


async def _in_sandboxes(work: _Work, rollout: Rollout) -> Rollout:
    """The order of sandboxes: the agent's, then the tests' own where they have one."""
    try:
        rollout = await _in_sandbox(work, rollout)
    finally:
        await work.close(work.sandbox)
    if rollout.handover is not None:
        rollout = await _in_own_sandbox(work, rollout, rollout.handover)
    return rollout


async def _in_sandbox(work: _Work, rollout: Rollout) -> Rollout:
    """The order of phases: set up, then one round, or one a step."""
    prepared = work.prepared
    async with Boundary() as setting_up:
        with work.phase("setup", "agent_setup"):
            async for captured in phases.set_up(work.prepared, work.sandbox, work.folder):
                prepared = with_captured(work.prepared, captured)
                if prepared.live is not None:
                    prepared.live.hide(captured.secrets)
                rollout = replace(rollout, secrets=captured.secrets, warnings=captured.warnings)
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
                await begin_step(step, work.sandbox, inner.folder, is_first=not done)
        one = with_failure(one, preparing.failure)
        one = await _round(inner, one, is_ready=preparing.failure is None)
        done.append(replace(one, seconds=inner.watch.seconds))
        work.watch.add(inner.watch.seconds)
        if not is_passed(step, one):
            break
    return combined(work.prepared, start, done)


async def _act(work: _Work, rollout: Rollout) -> AsyncGenerator[Rollout, None]:
    """The order of the agent's part: one turn, or the sessions of its scenes until one does not end well.

    Yields what the trial has come to after each, so that nothing is lost of what went before a failure.
    """
    if work.prepared.talk is not None:
        async for after in _rounds(work, work.prepared.talk, rollout):
            yield after
        return
    for session in work.prepared.sessions:
        with work.phase("agent", "agent_execution"):
            rollout = await play(work.prepared, session, work.sandbox, rollout, folder=work.folder)
        yield rollout
        # What was written in a workshop is looked at next, however the session ended.
        if rollout.is_broken or not (session.workshop or ended_well(rollout)):
            yield with_rest_unplayed(rollout, work.prepared.sessions)
            return
    if not work.prepared.sessions:
        with work.phase("agent", "agent_execution"):
            rollout = await phases.take_turn(work.prepared, work.sandbox, rollout)
        yield rollout


async def _rounds(work: _Work, talk: Talk, rollout: Rollout) -> AsyncGenerator[Rollout, None]:
    """The order of rounds: the user speaks, an agent works in a session of its own, the tests look on.

    What they think only tells the user how it went: the verdict comes after the last round.
    """
    heard = None
    for number in range(await begin_talk(talk)):
        session = await next_session(talk, number, heard)
        if session is None:
            return
        started, looked = time.monotonic(), NOBODY_LOOKED
        with work.phase("agent", "agent_execution"):
            rollout = await play(work.prepared, session, work.sandbox, rollout, folder=work.folder)
        yield rollout
        if talk.verifier is not None and not rollout.is_broken:
            with work.phase("checking", "soft_verifier"):
                looked = await look(work.prepared, work.sandbox, talk.verifier, rollout.secrets)
        rollout = with_round(rollout, talk, session, looked, seconds=time.monotonic() - started)
        yield rollout
        if rollout.is_broken:
            return
        heard = round_result(number, rollout, looked)


async def _round(work: _Work, rollout: Rollout, *, is_ready: bool) -> Rollout:
    """The order of one round: agent, freeze, tests, collect, judge; what is not ready is collected only."""
    prepared, sandbox = work.prepared, work.sandbox
    before: Load | None = None
    if is_ready:
        async with Boundary() as working:
            before = await separate.load_before(prepared, sandbox)
            async for after in _act(work, rollout):
                rollout = after
        rollout = with_failure(rollout, working.failure)
        is_ready = working.failure is None and not rollout.is_broken
    if not prepared.provider.capabilities.runs_commands:
        return rollout
    if is_ready and prepared.is_frozen_after:
        with work.phase("freezing", "freeze"):
            rollout = await phases.keep_workspace(prepared, sandbox, rollout, work.folder)
    if prepared.separate is not None:
        rollout = await _handed_over(work, rollout, before if is_ready else None)
    else:
        rollout = await _judged(work, rollout, phases.collect, is_ready=is_ready)
    async with Boundary() as reading:
        rollout = phases.with_events(rollout, work.folder, rollout.skills or prepared.agent_context.skills)
    return with_failure(rollout, reading.failure)


async def _judged(work: _Work, rollout: Rollout, collect: Collect, *, is_ready: bool = True) -> Rollout:
    """The order of a verdict: tests, collect, judge; what is not ready is collected only."""
    prepared, sandbox = work.prepared, work.sandbox
    tests: Completed | None = None
    if is_ready:
        async with Boundary(is_verifying=True) as verifying:
            with work.phase("verifying", "verifier"):
                tests = await phases.run_tests(prepared, sandbox, rollout)
            rollout = replace(rollout, test_output=tests.stdout)
        rollout = with_failure(rollout, verifying.failure)
    rollout, collecting = await _collected(work, rollout, collect)
    if tests is None:
        return rollout
    if collecting is not None:
        return with_failure(rollout, collecting)
    async with Boundary(is_verifying=True) as judging:
        rollout = phases.judge(prepared, tests, rollout, work.folder)
    return with_failure(rollout, judging.failure)


async def _collected(work: _Work, rollout: Rollout, collect: Collect) -> tuple[Rollout, Failure | None]:
    async with Boundary(is_verifying=True) as collecting:
        with work.phase("collecting", "collect"):
            warnings = await collect(work.prepared, work.sandbox, work.folder)
        rollout = replace(rollout, warnings=(*rollout.warnings, *warnings))
    return rollout, collecting.failure


async def _handed_over(work: _Work, rollout: Rollout, before: Load | None) -> Rollout:
    """The end of the agent's sandbox where the tests have their own: stop, copy, collect."""
    handover: Handover | None = None
    if before is not None:
        async with Boundary(is_verifying=True) as handing:
            with work.phase("moving", "verifier_sandbox_transfer"):
                room = carried_room(work.folder)
                handover = await separate.hand_over(work.prepared, work.sandbox, room, before)
        rollout = with_failure(rollout, handing.failure)
        if handover is None:
            rollout = separate.ended(work.prepared, rollout, "transfer_failed")
    rollout, _ = await _collected(work, rollout, phases.collect)
    return replace(rollout, handover=handover)


async def _in_own_sandbox(work: _Work, rollout: Rollout, handover: Handover) -> Rollout:
    """The order in the tests' own sandbox: open, fill, tests, collect, judge, close; the agent's is gone."""
    prepared = work.prepared
    if handover.too_much:
        return separate.refused(prepared, rollout, handover)
    with work.watch.time("verifier_sandbox_total"):
        rollout, status, sandbox = await _tested_apart(work, rollout, handover)
    timed = replace(rollout, seconds=work.watch.seconds)
    return separate.ended(prepared, timed, status, handover=handover, sandbox=sandbox)


async def _tested_apart(
    work: _Work, rollout: Rollout, handover: Handover
) -> tuple[Rollout, SeparateStatus, Sandbox | None]:
    sandbox: Sandbox | None = None
    async with Boundary(is_verifying=True) as opening:
        with work.phase("building", "verifier_sandbox_setup"):
            sandbox = await separate.open_separate(work.prepared, handover)
    if sandbox is None:
        return with_failure(rollout, opening.failure), "sandbox_failed", None
    try:
        async with Boundary(is_verifying=True) as filling:
            with work.phase("moving", "verifier_sandbox_transfer"):
                await separate.fill(work.prepared, sandbox, handover, carried_room(work.folder))
        if filling.failure is not None:
            return with_failure(rollout, filling.failure), "transfer_failed", sandbox
        inner = replace(work, sandbox=sandbox, prepared=separate.in_own_sandbox(work.prepared))
        rollout = await _judged(inner, rollout, phases.collect_verdict)
    finally:
        with work.phase("closing", "verifier_sandbox_teardown"):
            await work.close(sandbox)
    return rollout, "complete" if rollout.rewards is not None else "verifier_failed", sandbox
