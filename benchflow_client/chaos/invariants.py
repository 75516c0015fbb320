"""What must hold after any fault, as pure functions over what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.chaos.records import Invariant
from benchflow_client.ledger.base import JobProgress, JobState
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.failure import Fault
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import SCORED, Outcome, Receipt
from benchflow_client.summary import Account, aggregate

_SHOWN = 5
"""Places named of a broken invariant."""

_NO_DOCUMENT = frozenset({Outcome.CANCELLED, Outcome.ERRORED, Outcome.NOT_STARTED})
"""Outcomes a trial may have although no attempt of it could store a result."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of a job after the faults.

    Attributes:
        plan: What was planned.
        progress: The ledger's last counts.
        receipts: The ledger's receipts.
        trials: The same receipts with the documents behind them.
        summary: The job's summary.
        rows: Receipts read back from the job's file of rows.
        summaries: summary.json when the job closed, and after its body was asked for again.
        observed: What did not add up while the job ran.
        account: What the ledger spent on the job; no document holds it.
        reward: Reward of every scored trial; None = this sandbox gives none.
        messages: Messages of the job that are left in the broker.
        sandboxes: Sandboxes and records left of the job; None = nobody could look.
        mounts: Mounts left on this host.
        secrets: Places where the canary stands; None = there was no canary.
    """

    plan: Plan
    progress: JobProgress
    receipts: Sequence[Receipt]
    trials: Sequence[PublishedTrial]
    summary: Summary
    rows: Sequence[Receipt]
    summaries: tuple[bytes, bytes]
    observed: Sequence[str]
    account: Account
    reward: float | None
    messages: Sequence[str]
    sandboxes: Sequence[str] | None
    mounts: Sequence[str]
    secrets: Sequence[str] | None


def check(evidence: Evidence) -> tuple[Invariant, ...]:
    """Return every invariant with whether it holds."""
    size = evidence.plan.size
    found = evidence
    return (
        _judged("receipts", list(_receipts(found)), f"{size} receipts for {size} trials"),
        _judged("results", list(_results(found)), f"one published result for each of {size} trials"),
        _judged("buckets", list(_buckets(found)), "the counts added up whenever they were read"),
        _judged("gathered once", list(_gathered(found)), "one summary, the same when asked for again"),
        _judged("summary", list(_summary(found)), "equal to a recount from the store"),
        _judged("verdicts", list(_verdicts(found)), "no trial has a verdict it did not earn"),
        _judged("messages", found.messages, "none left in the broker"),
        _judged("sandboxes", found.sandboxes, "none without a lease, none on record"),
        _judged("mounts", found.mounts, "none left on this host"),
        _judged("secrets", found.secrets, "the canary stands nowhere"),
    )


def unfinished(progress: JobProgress, *, waited_s: float) -> Invariant:
    """Return the broken promise of a job that did not end."""
    text = (
        f"{progress.finished} of {progress.header.total} trials ended, {progress.running} run, "
        f"{progress.released} are released, and the job is {progress.state.value} after {waited_s:.0f} s"
    )
    return Invariant(name="ends", holds=False, text=text)


def _judged(name: str, problems: Sequence[str] | None, text: str) -> Invariant:
    if problems is None:
        return Invariant(name=name, holds=None, text="not looked at")
    if not problems:
        return Invariant(name=name, holds=True, text=text)
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return Invariant(name=name, holds=False, text="; ".join(problems[:_SHOWN]) + more)


def _receipts(found: Evidence) -> Iterator[str]:
    counted = Counter(receipt.trial_index for receipt in found.receipts)
    for index in range(found.plan.size):
        if counted[index] != 1:
            yield f"trial {index} has {counted[index]} receipts"
    for index in counted.keys() - set(range(found.plan.size)):
        yield f"trial {index} was never planned"


def _results(found: Evidence) -> Iterator[str]:
    folders = Counter(receipt.folder for receipt in found.receipts if receipt.folder)
    yield from (f"folder {folder} is published {n} times" for folder, n in folders.items() if n > 1)
    for receipt, result in ((trial.receipt, trial.result) for trial in found.trials):
        if result is None:
            if receipt.outcome not in _NO_DOCUMENT:
                yield f"trial {receipt.trial_index} is {receipt.outcome} and has no result.json"
            continue
        planned = found.plan.trial(receipt.trial_index)
        if (result.job, result.trial, result.index) != (found.plan.job, planned.id, planned.index):
            yield f"trial {receipt.trial_index} has the result of {result.trial}"
        elif Receipt.of(result) != receipt:
            yield f"trial {receipt.trial_index} has another receipt than result.json in {receipt.folder}"


def _buckets(found: Evidence) -> Iterator[str]:
    yield from found.observed
    counts = Counter(receipt.outcome for receipt in found.receipts)
    kept = {name: count for name, count in found.progress.outcomes.items() if count}
    if kept != dict(counts):
        yield f"the ledger counts {kept}, its receipts are {dict(counts)}"
    if found.progress.finished != found.plan.size:
        yield f"{found.progress.finished} of {found.plan.size} trials are finished"


def _gathered(found: Evidence) -> Iterator[str]:
    if found.progress.state is not JobState.CLOSED:
        yield f"the job is {found.progress.state.value}"
    if found.summaries[0] != found.summaries[1]:
        yield "summary.json changed when it was asked for again"
    if list(found.rows) != list(found.receipts):
        yield "results.jsonl holds other receipts than the ledger"


def _summary(found: Evidence) -> Iterator[str]:
    stored = [trial.receipt if trial.result is None else Receipt.of(trial.result) for trial in found.trials]
    elapsed_s = found.summary.elapsed_sec
    recount = aggregate(found.plan, stored, elapsed_s=elapsed_s, account=found.account)
    for name, value in recount.model_dump().items():
        if (told := found.summary.model_dump()[name]) != value:
            yield f"{name} is {told!r} and counts {value!r}"
    outcomes = Counter(receipt.outcome for receipt in stored)
    for outcome in Outcome:
        told = sum(getattr(group, outcome.value) for group in found.summary.groups)
        if told != outcomes[outcome.value]:
            yield f"{told} {outcome.value} in the summary, {outcomes[outcome.value]} in the store"


def _verdicts(found: Evidence) -> Iterator[str]:
    for receipt in found.receipts:
        is_scored = receipt.outcome in SCORED
        if is_scored != (receipt.reward is not None):
            yield f"trial {receipt.trial_index} is {receipt.outcome} with reward {receipt.reward}"
        elif is_scored and receipt.reward != found.reward:
            yield f"trial {receipt.trial_index} has reward {receipt.reward}, earned was {found.reward}"
        elif not is_scored and not _is_excused(receipt, found.reward):
            yield f"trial {receipt.trial_index} is {receipt.outcome} ({receipt.code or 'no failure'})"


def _is_excused(receipt: Receipt, reward: float | None) -> bool:
    """Return whether a trial may be without a verdict: faults can take it, and some sandboxes give none."""
    if receipt.outcome == Outcome.UNSCORED:
        return reward is None
    kind = FAILURES.get(receipt.code)
    return receipt.outcome == Outcome.CANCELLED or (kind is not None and kind.fault is Fault.INFRASTRUCTURE)
