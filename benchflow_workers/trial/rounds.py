"""Rounds: what a user says, what the tests think of the work so far, and what is kept of both.

The tests decide nothing here. They look on so that a user or a loop knows how it went; the
verdict is that of the hardened run after the last round.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchflow_client.errors import TrialError
from benchflow_client.schema.turns import RoundRow
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.trial.boundary import Boundary
from benchflow_workers.trial.networks import enter_network
from benchflow_workers.trial.records import Prepared, Rollout
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.session import Session
from benchflow_workers.trial.talk import Talk
from benchflow_workers.users.base import RoundResult, TestReport
from benchflow_workers.verifiers.base import SoftVerifier
from benchflow_workers.verifiers.reports import read_report

__all__ = ["NOBODY_LOOKED", "Look", "begin_talk", "look", "next_session", "round_result", "with_round"]

USER_TIMEOUT_S: Final = 120.0
"""A user has no more time for an answer: the sandbox waits for it."""

_OUTPUT_CHARS: Final = 64_000
"""Characters of the tests' output a user is shown, its end."""


_UNFIT: Final = frozenset({"verifier.harden_failed", "verifier.sandbox_lost"})
"""Failures after which an agent might find what it must not see, or nothing works any more."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the tests thought of the work after a round.

    Attributes:
        rewards: What they gave; None = nothing.
        output: What they printed, secrets masked; None = they did not run.
        error: Why they gave nothing; None = they gave something, or were not asked.
        report: What they say of each of them.
    """

    rewards: dict[str, Any] | None = None
    output: str | None = None
    error: str | None = None
    report: TestReport = field(default_factory=TestReport)


NOBODY_LOOKED: Final = Look()
"""The tests were not asked."""


async def begin_talk(talk: Talk) -> int:
    """Tell the user what the task is; returns how many rounds there may be.

    Raises:
        TrialError: `user.failed`: it raised, or has too few rounds for the task's turns.
    """
    rounds = await _asked(lambda: _begin(talk))
    if not isinstance(rounds, int) or rounds < len(talk.sessions):
        raise TrialError(
            "user.failed",
            f"The user has {rounds} rounds, fewer than the {len(talk.sessions)} turns of the task.",
            hint="Raise its max_rounds.",
        )
    return rounds


async def next_session(talk: Talk, number: int, heard: RoundResult | None) -> Session | None:
    """Return the session of a round, its prompt as the user says it; None = the user has said all.

    Raises:
        TrialError: `user.failed`: it raised, took too long, or said what is no text.
    """
    session = talk.session(number)
    prompt = await _asked(lambda: talk.user.run(number, session.context.prompts[0], heard))
    if prompt is None:
        return None
    if not isinstance(prompt, str) or not prompt.strip():
        raise TrialError(
            "user.failed",
            f"The user said {prompt!r:.100} in round {number}, which is no prompt.",
            hint="Its run method returns a text, or None to end.",
        )
    return replace(session, turns=(f"round-{number}",), context=replace(session.context, prompts=(prompt,)))


async def look(prepared: Prepared, sandbox: Sandbox, verifier: SoftVerifier, secrets: frozenset[str]) -> Look:
    """Return what the tests think of the work so far; what keeps them from a reward is told as an error.

    Raises:
        TrialError: `verifier.harden_failed`, `verifier.sandbox_lost`: no round may follow.
    """
    redactor = Redactor(prepared.secrets | secrets)
    looked = NOBODY_LOOKED
    with tempfile.TemporaryDirectory(prefix="bench-look-") as room:
        logs = Path(room) / "verifier"
        async with Boundary(is_verifying=True) as checking:
            await enter_network(prepared, sandbox, "verifier")
            logs.mkdir()
            run = await verifier.check(sandbox, prepared.verify_context, logs)
            verdict = verifier.judge(prepared.verify_context, run, logs)
            looked = Look(
                rewards=None if verdict.rewards is None else redactor.value(dict(verdict.rewards)),
                output=redactor.text(tail_text(run.stdout, limit_chars=_OUTPUT_CHARS)),
                error=None if verdict.failure is None else redactor.text(verdict.failure.message),
                report=_masked(read_report(logs), redactor),
            )
    if checking.failure is not None and checking.failure.code in _UNFIT:
        raise TrialError(checking.failure.code, checking.failure.message)
    if checking.failure is not None:
        return replace(looked, rewards=None, error=redactor.text(checking.failure.message))
    return looked


def round_result(number: int, rollout: Rollout, looked: Look) -> RoundResult:
    """Return what the user is told of the round that has just ended."""
    last = rollout.sessions[-1]
    return RoundResult(
        round=number,
        trajectory=tuple(rollout.events[len(rollout.events) - last.n_events :]) if last.n_events else (),
        rewards=looked.rewards,
        verifier_output=looked.output,
        verifier_error=looked.error,
        n_tool_calls=last.n_tool_calls,
        report=looked.report,
    )


def with_round(rollout: Rollout, talk: Talk, session: Session, looked: Look, *, seconds: float) -> Rollout:
    """Return the rollout with a line for the round that has just ended."""
    last = rollout.sessions[-1]
    before = rollout.rounds[-1] if rollout.rounds else None
    has_changed = before is not None and before.role != session.role
    row = RoundRow(
        round=len(rollout.rounds),
        scene=session.scene,
        role=session.role,
        handoff_from=before.role if before is not None and has_changed else None,
        handoff_to=session.role if has_changed else None,
        prompt=session.context.prompts[0],
        rewards=looked.rewards,
        verifier_error=looked.error,
        n_tool_calls=last.n_tool_calls,
        n_trajectory_events=last.n_events,
        wall_sec=round(seconds, 3),
        tokens=last.total_tokens,
        feedback_level=None if talk.loop is None else talk.loop.feedback or "none",
    )
    return replace(rollout, rounds=(*rollout.rounds, row))


async def _asked(question: Callable[[], object]) -> Any:
    """Return a user's answer; whatever its code raises is one failure.

    Runs in a thread, since a user may wait for somebody; a coroutine is waited for here.
    """
    clock = asyncio.timeout(USER_TIMEOUT_S)
    async with Boundary() as asking, clock:
        answer = await asyncio.to_thread(question)
        return await answer if inspect.isawaitable(answer) else answer
    if clock.expired():
        raise TrialError("user.failed", f"The user did not answer within {USER_TIMEOUT_S:g} s.")
    reason = "" if asking.failure is None else asking.failure.message
    raise TrialError("user.failed", f"The user could not go on: {reason}", hint="See the worker's log.")


async def _begin(talk: Talk) -> int:
    solution = talk.solution if talk.user.oracle_access else None
    begun = talk.user.setup(talk.instruction, solution)
    if inspect.isawaitable(begun):
        await begun
    return talk.user.max_rounds


def _masked(report: TestReport, redactor: Redactor) -> TestReport:
    return replace(report, failed_names=tuple(redactor.text(name) for name in report.failed_names))
