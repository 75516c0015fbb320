"""Which finished trials of a job are worth another execution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def select_retries(receipts: Iterable[Receipt], what: Sequence[str]) -> list[int]:
    """Return the trials to run again, in order of index.

    Args:
        receipts: Receipts of a closed job.
        what: Groups and failure codes; empty = what another execution may change: every
            trial without a verdict, except those the task itself is to blame for.

    Raises:
        UsageError: A word is neither a group nor a failure code.
    """
    for word in what:
        if word not in GROUPS and word not in FAILURES:
            raise UsageError(
                f"{word!r} is neither a group of trials nor a failure code.",
                hint=f"Groups: {', '.join(GROUPS)}. Codes stand in `bench results JOB --failed`.",
            )
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


def _is_wanted(receipt: Receipt, what: Sequence[str]) -> bool:
    if what:
        return any(receipt.outcome in GROUPS.get(word, ()) or receipt.code == word for word in what)
    if receipt.outcome in SCORED:
        return False
    kind = FAILURES.get(receipt.code)
    return kind is None or kind.is_retried or kind.fault is not Fault.TASK
