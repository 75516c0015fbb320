"""One session of several: how it begins in the sandbox of the one before, and what it adds to the rollout."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_client.schema.turns import SessionResult
from benchflow_workers.agents.base import INSTRUCTION_PATH, SkillSet, prompt_bytes
from benchflow_workers.agents.events import EVENTS_PATH
from benchflow_workers.agents.skills import open_workshop, place_skills
from benchflow_workers.agents.usage import total_usage
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.trial import phases
from benchflow_workers.trial.records import Prepared, Rollout
from benchflow_workers.trial.session import Session

__all__ = ["ended_well", "play", "with_rest_unplayed"]


async def play(
    prepared: Prepared, session: Session, sandbox: Sandbox, rollout: Rollout, *, folder: Path
) -> Rollout:
    """Let an agent work through the prompts of a session, and return the rollout with what it left.

    Where the role changes, what the agent before left running is killed and files and skills of
    this one are placed; the workspace stays as it is.

    Args:
        prepared: The task.
        session: Who works, on what.
        sandbox: Where.
        rollout: What the trial has come to.
        folder: The attempt's on this host.

    Raises:
        AgentError: `agent.not_runnable` when it could not be started at all; `skills.not_placed`, `skills.not_written`.
        SandboxError: The sandbox failed under it.
    """
    before = rollout.sessions[-1] if rollout.sessions else None
    uploads = [Upload(INSTRUCTION_PATH, content=prompt_bytes(session.context.prompts[0]), mode=0o644)]
    is_other = before is None or (before.scene, before.role) != (session.scene, session.role)
    if is_other:
        if before is not None and prepared.verify_context.agent_user is not None:
            await sandbox.kill(prepared.verify_context.agent_user)
        uploads.extend(session.agent.uploads(session.context))
    await sandbox.put(uploads)
    if is_other:
        setup_s = prepared.verify_context.setup_timeout_s
        await _equip(session, sandbox, rollout.skills, timeout_s=setup_s, folder=folder)
    started = time.monotonic()
    inner = replace(prepared, agent=session.agent, agent_context=session.context)
    one = await phases.take_turn(inner, sandbox, Rollout())
    seconds = time.monotonic() - started
    one = await _with_new_events(one, session, sandbox, rollout.n_events_read)
    return _joined(rollout, one, session, seconds)


async def _equip(
    session: Session, sandbox: Sandbox, before: SkillSet | None, *, timeout_s: float, folder: Path
) -> None:
    """Give an agent the skills of its session, or the place where it is to write some."""
    if session.workshop:
        await open_workshop(sandbox, session.workshop, session.context.user, timeout_s=timeout_s)
    await place_skills(sandbox, session.context, timeout_s=timeout_s, before=before, keep=folder)


def ended_well(rollout: Rollout) -> bool:
    """Return whether the last session came to its end by itself, with exit code 0 where it has one."""
    last = rollout.sessions[-1]
    return not rollout.is_broken and not last.timed_out and last.exit_code in {0, None}


def with_rest_unplayed(rollout: Rollout, sessions: Sequence[Session]) -> Rollout:
    """Return the rollout with a warning where sessions were not reached."""
    rest = sessions[len(rollout.sessions) :]
    if not rest or not rollout.sessions:
        return rollout
    last = rollout.sessions[-1].turns[-1]
    warning = (
        f"Stopped after {last}, which did not end well; {rest[0].turns[0]} and later turns were not played."
    )
    return replace(rollout, warnings=(*rollout.warnings, warning))


async def _with_new_events(one: Rollout, session: Session, sandbox: Sandbox, n_read: int) -> Rollout:
    """Return what a session came to with the events it has written to its file."""
    with tempfile.TemporaryDirectory(prefix="bench-events-") as room:
        place = Path(room) / EVENTS_PATH.removeprefix("/logs/")
        place.parent.mkdir(parents=True)
        if not await sandbox.get(EVENTS_PATH, place, limit_bytes=phases.EVENTS_LIMIT_BYTES):
            return one
        return phases.with_events(replace(one, n_events_read=n_read), Path(room), session.context.skills)


def _joined(rollout: Rollout, one: Rollout, session: Session, seconds: float) -> Rollout:
    result = SessionResult(
        turns=session.turns,
        scene=session.scene,
        role=session.role,
        agent=session.label,
        model=session.context.spec.model,
        seconds=round(seconds, 3),
        exit_code=one.agent_exit_code,
        timed_out=any(failure.code == "agent.timeout" for failure in one.failures),
        n_tool_calls=one.usage.n_tool_calls,
        n_skill_invocations=one.usage.n_skill_invocations,
        n_events=len(one.events),
        total_tokens=one.usage.total_tokens,
        cost_usd=one.usage.cost_usd,
    )
    name = session.turns[0]
    failures = [
        failure.model_copy(update={"message": f"{name}: {failure.message}"}) for failure in one.failures
    ]
    # Skills for writing skills say nothing of how those that were written are used.
    usage = one.usage.model_copy(update={"n_skill_invocations": 0}) if session.workshop else one.usage
    return replace(
        rollout,
        skills=session.context.skills,
        failures=(*rollout.failures, *failures),
        warnings=(*rollout.warnings, *one.warnings),
        events=(*rollout.events, _mark(session), *one.events),
        agent_log=rollout.agent_log + f"== {name} ==\n".encode() + one.agent_log + b"\n",
        agent_exit_code=one.agent_exit_code,
        is_broken=one.is_broken,
        agent_version=one.agent_version or rollout.agent_version,
        usage=total_usage([rollout.usage, usage]) if rollout.sessions else usage,
        n_events_read=max(rollout.n_events_read, one.n_events_read),
        sessions=(*rollout.sessions, result),
    )


def _mark(session: Session) -> Mapping[str, Any]:
    """Return the event that stands before those of a session."""
    return {
        "type": "session",
        "turns": list(session.turns),
        "scene": session.scene,
        "role": session.role,
        "agent": session.label,
    }
