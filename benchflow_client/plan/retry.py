"""Which finished trials of a job are worth another execution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import UsageError
from benchflow_client.schema.failure import Fault
from benchflow_client.schema.trial import SCORED, Outcome, Receipt

GROUPS: dict[str, frozenset[str]] = {
    "unscored": frozenset(set(Outcome) - SCORED - {Outcome.CANCELLED}),
    "errored": frozenset({Outcome.ERRORED, Outcome.VERIFIER_ERRORED}),
    "cancelled": frozenset({Outcome.CANCELLED}),
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


def _is_wanted(receipt: Receipt, what: Sequence[str]) -> bool:
    if what:
        return any(receipt.outcome in GROUPS.get(word, ()) or receipt.code == word for word in what)
    if receipt.outcome in SCORED:
        return False
    kind = FAILURES.get(receipt.code)
    return kind is None or kind.is_retried or kind.fault is not Fault.TASK
