"""What a job may spend, what it has spent, and why it stopped: from the ledger's counts to a document."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import Budget, Cause
from benchflow_client.ledger.base import JobProgress
from benchflow_client.schema.summary import BudgetReport
from benchflow_client.summary import Account

__all__ = ["Caps", "account_of", "budget_report", "raised_budget", "stop_text"]

_FLAGS = {
    Cause.COST: ("max_cost_usd", "cost_usd", "${:.2f}"),
    Cause.TOKENS: ("max_tokens", "tokens", "{:,} tokens"),
    Cause.SANDBOX: ("max_sandbox_seconds", "sandbox_seconds", "{:.0f} s of trials"),
    Cause.TRIALS: ("max_trials", "trials", "{} trials"),
}


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
    """

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_sandbox_seconds: float | None = None
    max_trials: int | None = None
    deadline_s: float | None = None


def raised_budget(progress: JobProgress, caps: Caps) -> Budget:
    """Return a job's budget with these caps in place of its own.

    Raises:
        UsageError: With it the job would stop again at once.
    """
    own, spent = progress.header.budget, progress.spent
    budget = replace(
        own,
        cost_usd=own.cost_usd if caps.max_cost_usd is None else caps.max_cost_usd,
        tokens=own.tokens if caps.max_tokens is None else caps.max_tokens,
        sandbox_s=own.sandbox_s if caps.max_sandbox_seconds is None else caps.max_sandbox_seconds,
        trials=own.trials if caps.max_trials is None else caps.max_trials,
        deadline_s=caps.deadline_s,
    )
    if progress.stop_cause == Cause.DEADLINE and caps.deadline_s is None:
        raise _not_raised(
            f"job {progress.header.job!r} stopped at its deadline", "--deadline-s SECONDS (from now on)"
        )
    for name, cap, used in (
        ("--max-cost-usd", budget.cost_usd, spent.cost_usd),
        ("--max-tokens", budget.tokens, spent.tokens),
        ("--max-sandbox-seconds", budget.sandbox_s, spent.sandbox_s),
        ("--max-trials", budget.trials, spent.trials),
    ):
        if cap is not None and used >= cap:
            raise _not_raised(f"job {progress.header.job!r} has used {used:g} of {cap:g}", f"a larger {name}")
    return budget


def _not_raised(what: str, needed: str) -> UsageError:
    return UsageError(f"Nothing may start: {what}.", hint=f"Give {needed}.")


def budget_report(progress: JobProgress) -> BudgetReport:
    """Return the caps of a job beside what it has spent."""
    budget, spent = progress.header.budget, progress.spent
    caps = {
        "max_cost_usd": budget.cost_usd,
        "max_tokens": budget.tokens,
        "max_sandbox_seconds": budget.sandbox_s,
        "max_trials": budget.trials,
        "deadline_s": budget.deadline_s,
    }
    return BudgetReport(
        caps={name: cap for name, cap in caps.items() if cap is not None},
        cost_usd=round(spent.cost_usd, 10),
        tokens=spent.tokens,
        sandbox_seconds=round(spent.sandbox_s, 3),
        trials=spent.trials,
        usd_unknown_attempts=spent.unknown_cost,
        tokens_unknown_attempts=spent.unknown_tokens,
        stopped=bool(progress.stop_cause),
        reason=stop_text(progress),
    )


def stop_text(progress: JobProgress) -> str:
    """Return why a job stopped before its end, for people; empty = it did not stop by itself."""
    cause = progress.stop_cause
    if not cause:
        return ""
    if cause == Cause.DEADLINE:
        return f"its deadline of {progress.header.budget.deadline_s:g} s is over"
    if cause in _FLAGS:
        flag, field, shape = _FLAGS[cause]
        report_values = {
            "cost_usd": progress.spent.cost_usd,
            "tokens": progress.spent.tokens,
            "sandbox_seconds": progress.spent.sandbox_s,
            "trials": progress.spent.trials,
        }
        return f"{shape.format(report_values[field])} used: {flag.replace('_', '-')} is reached"
    kind = FAILURES.get(progress.stop_code)
    label = kind.label if kind is not None else progress.stop_code
    return f"{progress.header.breaker} trials in a row ended alike: {label}"
