"""From what a test script left to a verdict, or to the reason why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchflow_client.errors import VerifierError
from benchflow_client.schema.failure import Failure
from benchflow_client.tasks.strategies import strategy_of
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Completed
from benchflow_workers.verifiers.base import Verdict, VerifyContext
from benchflow_workers.verifiers.criteria import read_criteria
from benchflow_workers.verifiers.dependency_markers import failed_install
from benchflow_workers.verifiers.programs import read_receipts
from benchflow_workers.verifiers.pytest_guard import (
    GuardReport,
    guard_of,
    guard_warnings,
    is_missing,
    read_report,
)
from benchflow_workers.verifiers.reward import CTRF_JSON, Rewards, read_rewards

__all__ = ["judge_script"]

LENIENT: Final = "BENCHFLOW_REWARD_LENIENT"
"""Variable of `verifier.env`; "1" ignores unknown keys of `reward.json` that are no numbers."""

UNSEEN: Final = (
    "the tests speak of pytest and gave a full reward, and no session of pytest began under the plugin guard: "
    "they may not run it, or not pass its options on, or something ran in its place"
)

SUSPECT: Final = (
    "verifier may be broken: its output shows that a tool of the tests could not be found or installed, "
    "there is no test report, and the reward is 0"
)


def judge_script(context: VerifyContext, run: Completed, logs: Path) -> Verdict:
    """Return the verdict on a run of the tests.

    An exit code other than 0 beside a valid reward is a verdict like any other.
    """
    failure = _unfinished(context, run)
    if failure is not None:
        return Verdict(rewards=None, failure=failure)
    guard = guard_of(run)
    report = GuardReport() if guard is None else read_report(guard, logs)
    if guard is not None and is_missing(guard, run.stdout, None if report.begun else logs):
        return Verdict(rewards=None, failure=_unguarded(context, run))
    try:
        rewards = _rewards(context, logs)
    except VerifierError as error:
        failure = _without_reward(context, run, error)
        return Verdict(rewards=None, failure=failure, warnings=guard_warnings(report))
    if report.is_broken_off and (rewards.reward or 0) >= 1:
        return Verdict(rewards=None, failure=_broken_off(context, run), warnings=guard_warnings(report))
    unseen = (UNSEEN,) if guard is not None and not report.begun and (rewards.reward or 0) >= 1 else ()
    warnings = (*rewards.warnings, *_suspicions(run, rewards, logs), *guard_warnings(report), *unseen)
    return Verdict(rewards.to_record(), None, warnings)


def _rewards(context: VerifyContext, logs: Path) -> Rewards:
    """Return the verdict in the reward files, by the rules the task declares."""
    task, strategy = context.task, strategy_of(context.task)
    criteria = None
    if strategy is not None and strategy.criteria:
        criteria = read_criteria(context.task_dir / str(task.verifier_dir) / strategy.criteria)
    of_criteria = None if criteria is None else criteria.policy
    of_document = task.document.get("verifier_strategy", {}).get("aggregate_policy")
    rewards = read_rewards(
        logs,
        reward_range=task.config.verifier.reward_range,
        policy=of_criteria or of_document or task.config.reward.get("aggregate"),
        lenient=context.env.get(LENIENT) == "1",
    )
    return rewards if criteria is None else criteria.checked(rewards)


def _unfinished(context: VerifyContext, run: Completed) -> Failure | None:
    """Return why the tests did not come to their end; None = they did."""
    task, has_started = context.task.name, read_receipts(run).has_started
    if run.timed_out and has_started:
        return Failure(
            code="verifier.timeout",
            message=f"The verifier of task {task!r} timed out after {context.timeout_s:g} s; "
            "a reward it may have written by then does not count.",
            hint="Raise verifier.timeout_sec, or find what the tests wait for.",
            detail=tail_text(run.stdout),
        )
    if run.timed_out:
        return Failure(
            code="verifier.sandbox_lost",
            message=f"The sandbox of task {task!r} ran nothing within the verifier's "
            f"{context.timeout_s:g} s, twice: the tests never started.",
        )
    if not has_started:
        return Failure(
            code="verifier.sandbox_lost",
            message=f"The sandbox of task {task!r} cannot run a shell any more (exit code "
            f"{run.exit_code}), so the tests never started.",
            detail=tail_text(run.stderr),
        )
    return None


def _unguarded(context: VerifyContext, run: Completed) -> Failure:
    """Return the failure of tests in which pytest was told of the plugin guard and could not load it."""
    return Failure(
        code="verifier.guard_failed",
        message=f"Pytest could not load the plugin guard in the tests of task {context.task.name!r}, so it "
        "ran none of them: they run a Python that does not look where PYTHONPATH says.",
        hint="Let the tests keep it: export PYTHONPATH=/app:$PYTHONPATH; no -I, -E or tox.",
        detail=tail_text(run.stdout),
    )


def _broken_off(context: VerifyContext, run: Completed) -> Failure:
    """Return the failure of a full reward although no session of pytest came to its end."""
    return Failure(
        code="verifier.session_broken_off",
        message=f"The tests of task {context.task.name!r} gave a full reward although no session of pytest came "
        "to its end: something that ran in it ended or replaced it.",
        hint="Read what the agent left; tests that only look at the exit code can be ended by what they import.",
        detail=tail_text(run.stdout),
    )


def _without_reward(context: VerifyContext, run: Completed, error: VerifierError) -> Failure:
    """Return the failure of tests that ended without a reward that can be read."""
    ending = f"The test script of task {context.task.name!r} ended with exit code {run.exit_code}"
    if run.oom_killed:
        ending += " after the kernel killed a process of it for memory"
    if error.code == "verifier.no_reward" and failed_install(run.stdout):
        return Failure(
            code="verifier.dep_install",
            message=f"{ending} without a reward: it could not find or install a tool it needs.",
            hint="Bake the tools into the task's image; a sandbox may have no network.",
        )
    return Failure(
        code=error.code,
        message=f"{ending}. {error.message}",
        hint=error.hint,
        detail=tail_text(run.stdout),
    )


def _suspicions(run: Completed, rewards: Rewards, logs: Path) -> tuple[str, ...]:
    """Return a warning where a 0 looks like the tests' own failure; the score stands."""
    has_report = (logs / CTRF_JSON).exists()
    if rewards.reward == 0 and not has_report and failed_install(run.stdout):
        return (SUSPECT,)
    return ()
