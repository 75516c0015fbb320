"""What a regrade found, written beside the results it judged again; those stay as they are.

`<job>/<attempt>/regrade/<id>/regrade.json` is one judgement, `<job>/<attempt>/regrade.json`
all of them, `<job>/regrade-summary.json` the latest regrade of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from benchflow_client.errors import ObjectNotFoundError
from benchflow_client.schema.base import Document
from benchflow_client.schema.plan import Plan, RefusedTrial, Regrade, RegradedTrial
from benchflow_client.schema.trial import NOT_RUN, Outcome, Receipt, TrialResult, scalar_reward
from benchflow_client.store.base import Store
from benchflow_client.store.documents import read_document, write_document
from benchflow_client.store.keys import relative_to
from benchflow_client.store.layout import attempt_prefix, job_prefix, result_key

__all__ = [
    "Judgement",
    "RegradeSummary",
    "TrialRegrades",
    "latest_judgements",
    "read_regrade_summary",
    "regrade_summary",
    "write_regrades",
]

Status = Literal["complete", "failed", "interrupted"]
"""Whether there is a new verdict; failed = the verifier or its sandbox reached none."""


class Judgement(Document):
    """One trial, judged again."""

    id: str = Field(description="The regrade: name of the job that judged.")
    trial: str = Field(description="The trial that was judged.")
    folder: str = Field(description="Folder of its attempt below its own job's.")
    judged_in: str = Field(description="Folder with the new verifier's files, below the regrade's job.")
    created_at: datetime = Field(description="When the regrade was planned (UTC).")
    reason: str = Field(description="Why, for people.")
    task_dir: str = Field(description="Where the present tasks were read.")
    sandbox: str = Field(description="Kind of sandbox.")
    original_task_digest: str = Field(description="Digest of the task the agent was given.")
    task_digest: str = Field(description="Digest of the task whose verifier judged.")
    task_changed: bool = Field(description="Whether the two differ.")
    original_rewards: dict[str, Any] | None = Field(description="Verdict of the trial; None = none.")
    original_reward: float | None = Field(description="Its reward; None = no verdict.")
    new_rewards: dict[str, Any] | None = Field(description="The new verdict; None = none.")
    new_reward: float | None = Field(description="Its reward; None = no verdict.")
    status: Status = Field(description="Whether there is a new verdict.")
    verifier_error: str | None = Field(description="Why there is none; None = there is one.")
    change: str = Field(
        description="same, fail->pass, pass->fail, reward A -> B, scored or unscored: what the trial became."
    )


class TrialRegrades(Document):
    """Every judgement of one trial, in order of time."""

    original: dict[str, Any] = Field(description="Outcome, reward and rewards of its result.json.")
    regrades: tuple[Judgement, ...] = Field(description="All judgements, the oldest first.")
    latest: Judgement = Field(description="The last of them.")


class RegradeSummary(Document):
    """What a regrade changed."""

    id: str = Field(description="Name of the job that judged.")
    job: str = Field(description="The job whose trials were judged.")
    created_at: datetime = Field(description="When it was planned (UTC).")
    reason: str = Field(description="Why, for people.")
    task_dir: str = Field(description="Where the present tasks were read.")
    sandbox: str = Field(description="Kind of sandbox.")
    changes: dict[str, int] = Field(description="How many trials by change, rewards as `reward`.")
    trials: tuple[Judgement, ...] = Field(description="Each trial that was judged.")
    refused: tuple[RefusedTrial, ...] = Field(description="Trials that could not be, and why.")


def write_regrades(store: Store, plan: Plan, receipts: Iterable[Receipt]) -> None:
    """Write what a finished regrade found, where the plan is one; safe to call twice.

    Args:
        store: Where both jobs are.
        plan: The plan.
        receipts: Its receipts.

    Raises:
        StoreError: A document cannot be read or written.
    """
    regrade = plan.regrade
    if regrade is None:
        return
    summary = regrade_summary(store, plan, regrade, receipts)
    for judgement, kept in zip(summary.trials, regrade.trials, strict=True):
        _write_beside(store, regrade.job, judgement, kept)
    write_document(store, _summary_key(regrade.job), summary)


def regrade_summary(
    store: Store, plan: Plan, regrade: Regrade, receipts: Iterable[Receipt]
) -> RegradeSummary:
    """Return what a finished regrade found; nothing is written.

    Args:
        store: Where both jobs are.
        plan: Its plan.
        regrade: What makes the plan one.
        receipts: Its receipts.

    Raises:
        StoreError: A document cannot be read.
    """
    by_index = {receipt.trial_index: receipt for receipt in receipts}
    found = tuple(
        _judgement(store, plan, kept, by_index[kept.index], reason=regrade.reason) for kept in regrade.trials
    )
    return RegradeSummary(
        id=plan.job,
        job=regrade.job,
        created_at=plan.created_at,
        reason=regrade.reason,
        task_dir=plan.source.path,
        sandbox=plan.sandbox,
        changes=dict(Counter(item.change.partition(" ")[0] for item in found)),
        trials=found,
        refused=regrade.refused,
    )


def read_regrade_summary(store: Store, job: str) -> RegradeSummary | None:
    """Return what the latest regrade of a job found; None = there was none."""
    try:
        return read_document(store, _summary_key(job), RegradeSummary)
    except ObjectNotFoundError:
        return None


def latest_judgements(store: Store, job: str) -> dict[str, Judgement]:
    """Return trial id -> what the last regrade of it found; empty = none of the job's was judged again.

    Raises:
        StoreError: A document cannot be read.
    """
    if read_regrade_summary(store, job) is None:
        return {}
    bare = job_prefix(job).removesuffix("/")
    keys = [
        key
        for key in store.list(job_prefix(job))
        if relative_to(bare, key).split("/")[1:] == ["regrade.json"]
    ]
    found = (read_document(store, key, TrialRegrades).latest for key in keys)
    return {judgement.trial: judgement for judgement in found}


def _judgement(store: Store, plan: Plan, kept: RegradedTrial, receipt: Receipt, *, reason: str) -> Judgement:
    result = _result(store, plan.job, receipt)
    rewards = None if result is None else result.rewards
    before, after = scalar_reward(kept.rewards), scalar_reward(rewards)
    task = plan.trial(kept.index).task
    return Judgement(
        id=plan.job,
        trial=kept.trial,
        folder=kept.folder,
        judged_in=receipt.folder,
        created_at=plan.created_at,
        reason=reason,
        task_dir=plan.source.path,
        sandbox=plan.sandbox,
        original_task_digest=kept.task_digest,
        task_digest=task.digest,
        task_changed=task.digest != kept.task_digest,
        original_rewards=kept.rewards,
        original_reward=before,
        new_rewards=rewards,
        new_reward=after,
        status=_status(receipt, after),
        verifier_error=None if after is not None else _error(result, receipt),
        change=_change(before, after),
    )


def _result(store: Store, job: str, receipt: Receipt) -> TrialResult | None:
    if not receipt.folder:
        return None
    try:
        return read_document(store, result_key(job, receipt.folder), TrialResult)
    except ObjectNotFoundError:
        return None


def _status(receipt: Receipt, reward: float | None) -> Status:
    if reward is not None:
        return "complete"
    return "interrupted" if Outcome(receipt.outcome) in NOT_RUN else "failed"


def _error(result: TrialResult | None, receipt: Receipt) -> str:
    if result is None:
        return receipt.code or receipt.outcome
    return result.verifier_error or result.error or receipt.outcome


def _change(before: float | None, after: float | None) -> str:
    if before == after:
        return "same"
    if before is None:
        return "scored"
    if after is None:
        return "unscored"
    if (before >= 1) != (after >= 1):
        return "fail->pass" if after >= 1 else "pass->fail"
    return f"reward {before:g} -> {after:g}"


def _write_beside(store: Store, job: str, judgement: Judgement, kept: RegradedTrial) -> None:
    """Write one judgement, then all of the trial: each has a document of its own, so none is lost."""
    place = f"{attempt_prefix(job, judgement.folder)}regrade/"
    write_document(store, f"{place}{judgement.id}/regrade.json", judgement)
    documents = [
        read_document(store, key, Judgement) for key in store.list(place) if key.endswith("/regrade.json")
    ]
    in_time = tuple(sorted(documents, key=lambda item: (item.created_at, item.id)))
    original = {"outcome": kept.outcome.value, "reward": scalar_reward(kept.rewards), "rewards": kept.rewards}
    everything = TrialRegrades(original=original, regrades=in_time, latest=in_time[-1])
    write_document(store, f"{attempt_prefix(job, judgement.folder)}regrade.json", everything)


def _summary_key(job: str) -> str:
    return f"{job_prefix(job)}regrade-summary.json"
