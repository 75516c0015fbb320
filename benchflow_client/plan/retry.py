"""Which trials of a job are worth another execution, and why the others are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import UsageError
from benchflow_client.schema.failure import Fault
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import NOT_RUN, SCORED, Outcome, Receipt

GROUPS: dict[str, frozenset[str]] = {
    "unscored": frozenset(set(Outcome) - SCORED - NOT_RUN),
    "errored": frozenset({Outcome.ERRORED, Outcome.VERIFIER_ERRORED}),
    "cancelled": frozenset({Outcome.CANCELLED}),
    "not_started": frozenset({Outcome.NOT_STARTED}),
}
"""Words for groups of outcomes; `unscored` is every trial that ended without a verdict."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one trial of a job that is taken up again."""

    index: int
    is_again: bool  # it runs; else its result is kept
    outcome: str  # how it had ended; empty = it had not
    code: str  # failure code it had ended with; empty = none
    reason: str  # why, for people


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of every trial of a job, in order of index."""

    plan: Plan
    decisions: tuple[Decision, ...]

    @property
    def again(self) -> list[int]:
        """Return the trials that run."""
        return [decision.index for decision in self.decisions if decision.is_again]

    @property
    def n_kept(self) -> int:
        """Return how many finished trials keep their result."""
        return sum(not decision.is_again for decision in self.decisions)

    def n_ended(self, outcomes: Counter[str]) -> int:
        """Return how many of the trials that were to run did.

        Args:
            outcomes: How many trials of the whole job ended how, afterwards.
        """
        before = Counter(decision.outcome for decision in self.decisions if not decision.is_again)
        idle = sum(outcomes[name] - before[name] for name in NOT_RUN)
        return len(self.again) - idle


def choose(
    plan: Plan, receipts: Iterable[Receipt], what: Sequence[str] = (), *, began: Collection[str] = ()
) -> Choice:
    """Decide about every trial of a job that does not run.

    Args:
        plan: The job's plan.
        receipts: Receipts of the trials that finished; the others run in any case.
        what: See `select_retries`.
        began: Ids of the trials of which an attempt began and left no result.

    Raises:
        UsageError: A word of `what` is neither a group nor a failure code.
    """
    check_words(what)
    finished = {receipt.trial_index: receipt for receipt in receipts}
    decisions = (
        _decision(finished[index], is_again=_is_wanted(finished[index], what))
        if index in finished
        else _unfinished(plan, index, began)
        for index in range(plan.size)
    )
    return Choice(plan, tuple(decisions))


def keep_finished(plan: Plan, receipts: Iterable[Receipt]) -> Choice:
    """Let only the trials run that have not finished."""
    finished = {receipt.trial_index: receipt for receipt in receipts}
    decisions = (
        _decision(finished[index], is_again=False) if index in finished else _unfinished(plan, index, ())
        for index in range(plan.size)
    )
    return Choice(plan, tuple(decisions))


def select_retries(receipts: Iterable[Receipt], what: Sequence[str]) -> list[int]:
    """Return the trials to run again, in order of index.

    Args:
        receipts: Receipts of a closed job.
        what: Groups and failure codes; empty = what another execution may change: every
            trial without a verdict, except those the task itself is to blame for.

    Raises:
        UsageError: A word is neither a group nor a failure code.
    """
    check_words(what)
    return sorted(receipt.trial_index for receipt in receipts if _is_wanted(receipt, what))


def find_trial(plan: Plan, trial: str) -> int:
    """Return the position of the trial with an id.

    Raises:
        UsageError: The job has no such trial.
    """
    for index in range(plan.size):
        if plan.trial(index).id == trial:
            return index
    raise UsageError(
        f"Job {plan.job!r} has no trial {trial!r}.",
        hint=f"Its trials are named like {plan.trial(0).id}: bench results {plan.job} --trials",
    )


def check_words(what: Iterable[str]) -> None:
    """Refuse a word that is neither a group of trials nor a failure code.

    Raises:
        UsageError: Names the first such word.
    """
    for word in what:
        if word not in GROUPS and word not in FAILURES:
            raise UsageError(
                f"{word!r} is neither a group of trials nor a failure code.",
                hint=f"Groups: {', '.join(GROUPS)}. Codes stand in `bench results JOB --failed`.",
            )


def _is_wanted(receipt: Receipt, what: Sequence[str]) -> bool:
    if what:
        return any(receipt.outcome in GROUPS.get(word, ()) or receipt.code == word for word in what)
    if receipt.outcome in SCORED:
        return False
    kind = FAILURES.get(receipt.code)
    return kind is None or kind.is_retried or kind.fault is not Fault.TASK


def _unfinished(plan: Plan, index: int, began: Collection[str]) -> Decision:
    reason = "interrupted" if plan.trial(index).id in began else "never started"
    return Decision(index, is_again=True, outcome="", code="", reason=reason)


def _decision(receipt: Receipt, *, is_again: bool) -> Decision:
    return Decision(receipt.trial_index, is_again, receipt.outcome, receipt.code, _reason(receipt))


def _reason(receipt: Receipt) -> str:
    """Say how a trial had ended."""
    kind = FAILURES.get(receipt.code)
    if receipt.outcome in SCORED and receipt.reward is not None:
        return f"{receipt.outcome}, reward {receipt.reward:g}"
    if kind is not None:
        return f"{kind.label} ({receipt.code})"
    return receipt.code or receipt.outcome.replace("_", " ")
