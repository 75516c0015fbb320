"""Verifying again what an agent left: kept in the store before any test runs, found by the next attempt.

An attempt whose verifier failed, or whose worker died under it, is followed by one that
puts the work back and runs the tests; the agent never runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchflow_client.errors import ObjectNotFoundError, StoreError
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.recovery import SOLVER_COMPLETE, RecoveryRecord, SolverComplete
from benchflow_client.schema.task import Task
from benchflow_client.schema.trial import FrozenWorkspace, TrialResult
from benchflow_client.store.base import Store
from benchflow_client.store.documents import plain_json, read_document, write_document
from benchflow_client.store.layout import attempt_prefix, result_key
from benchflow_workers.trial.frozen import EVIDENCE
from benchflow_workers.trial.records import Attempt, Kept, Prepared, Recovery, Rollout
from benchflow_workers.trial.redact import Redactor

__all__ = ["keep_solver", "kept_for", "recovered", "recovery_of"]

_LOOKED_AT: Final = 20
"""Earlier attempts that are looked at: a trial has few, however often its workers were drained."""


def recovery_of(attempt: Attempt, task: Task, store: Store, kept: Kept | None) -> Recovery | None:
    """Return how an attempt is made recoverable; None = its task does not ask for it."""
    verifier = task.config.verifier
    is_asked = verifier.workspace_recovery or bool(verifier.submission_files)
    if not is_asked or attempt.plan.regrade is not None or task.config.steps:
        return None
    if verifier.is_separate and not verifier.submission_files:
        return None  # its tests are given artifacts too, which a workspace does not hold
    return Recovery(store, attempt, kept)


def kept_for(attempt: Attempt, task: Task, store: Store) -> Kept | None:
    """Return whose work an attempt judges without an agent: another job's, or an earlier attempt's; None = its own.

    Raises:
        StoreError: The store cannot be read.
    """
    regrade = attempt.plan.regrade
    if regrade is not None:
        judged = regrade.of(attempt.trial.index)
        return None if judged is None else Kept(regrade.job, judged.trial, judged.folder, judged.frozen)
    if recovery_of(attempt, task, store, None) is None:
        return None
    for folder in _earlier(attempt):
        try:
            done = read_document(store, _key(attempt, folder), SolverComplete)
        except ObjectNotFoundError:
            continue
        return Kept(
            attempt.plan.job,
            done.trial,
            folder,
            done.frozen,
            solver=done,
            error=_error(attempt, store, folder),
        )
    return None


async def keep_solver(prepared: Prepared, rollout: Rollout, room: Path) -> Rollout:
    """Put what an agent left into the store, so that a later attempt can judge it if this one cannot.

    Args:
        prepared: The rollout's plan; without a recovery nothing is done.
        rollout: Its agent has ended and what it left is in `room`.
        room: Folder with the evidence, secrets masked.

    Returns:
        The rollout, with a warning where the store refuses: then a later attempt runs the agent again.
    """
    recovery = prepared.recovery
    if recovery is None or rollout.frozen is None:
        return rollout
    try:
        redactor = Redactor(prepared.secrets | rollout.secrets)
        await asyncio.to_thread(_store, recovery, rollout, rollout.frozen, room=room, redactor=redactor)
    except StoreError as error:
        return replace(
            rollout, warnings=(*rollout.warnings, f"The agent's work was not kept. {error.message}")
        )
    return replace(rollout, is_solver_kept=True)


def recovered(prepared: Prepared, rollout: Rollout) -> Rollout:
    """Return the rollout with its record where it judged the work of an earlier attempt."""
    kept = None if prepared.recovery is None else prepared.recovery.kept
    if kept is None or kept.solver is None:
        return rollout
    record = RecoveryRecord(
        status="failed" if rollout.rewards is None else "complete",
        solver_folder=kept.solver.folder,
        original_error=kept.error,
        evidence=kept.frozen,
        evidence_folder=kept.folder,
        recovered_rewards=None if rollout.rewards is None else plain_json(rollout.rewards),
    )
    told = (
        f"The agent did not run in this attempt: what it left in attempt {kept.solver.folder} was verified again.",
        *kept.solver.warnings,
    )
    return replace(rollout, recovery=record, warnings=(*rollout.warnings, *told))


def _earlier(attempt: Attempt) -> Iterator[str]:
    """Yield the folders earlier attempts may have, the newest first; a job that was reopened began to count anew."""
    trial = attempt.trial
    for fence in range(attempt.fence - 1, max(0, attempt.fence - 1 - _LOOKED_AT), -1):
        yield trial.folder(fence, epoch=attempt.epoch)
    for epoch in range(attempt.epoch - 1, -1, -1):
        yield from (trial.folder(fence, epoch=epoch) for fence in range(_LOOKED_AT, 0, -1))


def _store(
    recovery: Recovery, rollout: Rollout, frozen: FrozenWorkspace, *, room: Path, redactor: Redactor
) -> None:
    attempt, before = recovery.attempt, None if recovery.kept is None else recovery.kept.solver
    recovery.store.put_tree(f"{attempt_prefix(attempt.plan.job, attempt.folder)}{EVIDENCE}/", room)
    done = SolverComplete(
        trial=attempt.trial.id,
        folder=attempt.folder if before is None else before.folder,
        attempt=attempt.number if before is None else before.attempt,
        finished_at=utc_now() if before is None else before.finished_at,
        exit_code=rollout.agent_exit_code,
        failures=tuple(_redacted(failure, redactor) for failure in rollout.failures),
        usage=rollout.usage,
        frozen=frozen,
        warnings=tuple(map(redactor.text, rollout.warnings)) if before is None else before.warnings,
    )
    # Last: what it names is there.
    write_document(recovery.store, _key(attempt, attempt.folder), done)


def _redacted(failure: Failure, redactor: Redactor) -> Failure:
    return Failure.model_validate(redactor.value(failure.model_dump(mode="json")))


def _error(attempt: Attempt, store: Store, folder: str) -> str | None:
    try:
        result = read_document(store, result_key(attempt.plan.job, folder), TrialResult)
    except ObjectNotFoundError:
        return None
    return result.verifier_error or result.error


def _key(attempt: Attempt, folder: str) -> str:
    return attempt_prefix(attempt.plan.job, folder) + SOLVER_COMPLETE
