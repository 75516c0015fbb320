"""What a job may spend, what it has spent, and why it stopped: from the ledger's counts to a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import Budget, Cause, Spent
from benchflow_client.ledger.base import JobProgress
from benchflow_client.schema.summary import BudgetReport
from benchflow_client.schema.trial import Receipt
from benchflow_client.summary import Account
from benchflow_client.wording import flag, money

__all__ = [
    "Caps",
    "account_of",
    "budget_report",
    "cause_text",
    "check_budget",
    "check_deadline",
    "raised_budget",
    "stop_text",
    "stored_spent",
    "with_caps",
]


class _Cap(NamedTuple):
    """A cap under its names."""

    cause: str  # what trials wait for when it is reached
    key: str  # in a job's spec
    name: str  # in the ledger's budget, and in what was spent
    used: Callable[[Any, Any], str]  # what is used of it, for people


_SPENT = (
    _Cap(Cause.COST, "max_cost_usd", "cost_usd", lambda used, cap: f"{money(used)} of {money(cap)} used"),
    _Cap(Cause.TOKENS, "max_tokens", "tokens", lambda used, cap: f"{used:,} of {cap:,} tokens used"),
    _Cap(
        Cause.SANDBOX,
        "max_sandbox_seconds",
        "sandbox_s",
        lambda used, cap: f"{used:,.1f} s of {cap:,g} s used",
    ),
    _Cap(Cause.TRIALS, "max_trials", "trials", lambda used, cap: f"{used:,} of {cap:,} trials started"),
)
_KEYS = {cap.cause: cap.key for cap in _SPENT} | {Cause.DEADLINE: "deadline_s"}


def account_of(progress: JobProgress) -> Account:
    """Return what the ledger knows of a job beside its receipts."""
    return Account(budget_report(progress), progress.retry_codes)


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps that replace those of a job that goes on; None = as before. Named as in `JobSpec`.

    Attributes:
        max_cost_usd: US dollars the job may spend, what it has spent included.
        max_tokens: Tokens the job may use, those it has used included.
        max_sandbox_seconds: Seconds its trials may take together, past ones included.
        max_trials: Trials it may start, past ones included.
        deadline_s: Start nothing later than so many seconds from now.

    Raises:
        UsageError: A cap is no number above 0.
    """

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_sandbox_seconds: float | None = None
    max_trials: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for field in fields(self):
            cap = getattr(self, field.name)
            if cap is not None and not 0 < cap < math.inf:
                raise UsageError(
                    f"{flag(field.name)} = {cap} lets nothing start.", hint="Give a number above 0."
                )


def raised_budget(progress: JobProgress, caps: Caps) -> Budget:
    """Return a job's budget with these caps in place of its own.

    Raises:
        UsageError: With it the job would stop again at once.
    """
    job, budget = progress.header.job, with_caps(progress.header.budget, caps)
    check_deadline(job, caps, is_over=progress.stop_cause == Cause.DEADLINE)
    check_budget(job, budget, progress.spent)
    return budget


def with_caps(budget: Budget, caps: Caps) -> Budget:
    """Return a budget with these caps in place of its own."""
    given = {cap.name: getattr(caps, cap.key) for cap in _SPENT}
    return replace(
        budget,
        deadline_s=budget.deadline_s if caps.deadline_s is None else caps.deadline_s,
        **{name: cap for name, cap in given.items() if cap is not None},
    )


def check_deadline(job: str, caps: Caps, *, is_over: bool) -> None:
    """Refuse to go on with a job whose deadline is over and that is given no other.

    Raises:
        UsageError: It would stop again at once.
    """
    if is_over and caps.deadline_s is None:
        raise UsageError(
            f"Nothing may start of job {job!r}: its deadline is over.",
            hint="Give --deadline-s SECONDS, which count from now on.",
        )


def check_budget(job: str, budget: Budget, spent: Spent) -> None:
    """Refuse to go on with a job that has spent what it may.

    Raises:
        UsageError: It would stop again at once.
    """
    for cap in _SPENT:
        most, used = getattr(budget, cap.name), getattr(spent, cap.name)
        if most is not None and used >= most:
            raise UsageError(
                f"Nothing may start of job {job!r}: {cap.used(used, most)}.",
                hint=f"Give a larger {flag(cap.key)}.",
            )


def stored_spent(report: BudgetReport | None, receipts: Sequence[Receipt]) -> Spent:
    """Return what a job has spent by its documents: its summary, else the results of its trials."""
    if report is not None:
        return Spent(report.cost_usd, report.tokens, report.sandbox_seconds, report.trials)
    ran = [receipt for receipt in receipts if receipt.attempts]
    return Spent(
        cost_usd=sum(receipt.cost_usd or 0.0 for receipt in ran),
        tokens=sum(receipt.tokens or 0 for receipt in ran),
        sandbox_s=sum(receipt.wall_s for receipt in ran),
        trials=len(ran),
    )


def budget_report(progress: JobProgress) -> BudgetReport:
    """Return the caps of a job beside what it has spent."""
    budget, spent = progress.header.budget, progress.spent
    caps = {cap.key: getattr(budget, cap.name) for cap in _SPENT} | {"deadline_s": budget.deadline_s}
    return BudgetReport(
        caps={name: cap for name, cap in caps.items() if cap is not None},
        cost_usd=round(spent.cost_usd, 10),
        tokens=spent.tokens,
        sandbox_seconds=round(spent.sandbox_s, 3),
        trials=spent.trials,
        usd_unknown_attempts=spent.unknown_cost,
        tokens_unknown_attempts=spent.unknown_tokens,
        stopped=bool(progress.stop_cause),
        stopped_by=_KEYS.get(progress.stop_cause, ""),
        reason=stop_text(progress),
    )


def stop_text(progress: JobProgress) -> str:
    """Return why a job stopped before its end, for people; empty = it did not stop by itself."""
    cause, budget = progress.stop_cause, progress.header.budget
    if not cause:
        return ""
    if cause == Cause.DEADLINE:
        return "the deadline is over" if budget.deadline_s is None else f"{budget.deadline_s:g} s are over"
    for cap in _SPENT:
        if cause == cap.cause:
            return cap.used(getattr(progress.spent, cap.name), getattr(budget, cap.name) or 0)
    kind = FAILURES.get(progress.stop_code)
    label = kind.label if kind is not None else progress.stop_code
    return f"{progress.header.breaker} trials in a row ended alike: {label}"


def cause_text(cause: str) -> str:
    """Return what trials wait for, for people: caps are named as the flags that set them."""
    return flag(_KEYS[cause]).removeprefix("--") if cause in _KEYS else cause
