"""What a job may spend, what it has spent, and why it stopped: from the ledger's counts to a document."""

from __future__ import annotations

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.ledger.admission import Cause
from benchflow_client.ledger.base import JobProgress
from benchflow_client.schema.summary import BudgetReport
from benchflow_client.summary import Account

__all__ = ["account_of", "budget_report", "stop_text"]

_FLAGS = {
    Cause.COST: ("max_cost_usd", "cost_usd", "${:.2f}"),
    Cause.TOKENS: ("max_tokens", "tokens", "{:,} tokens"),
    Cause.SANDBOX: ("max_sandbox_seconds", "sandbox_seconds", "{:.0f} s of trials"),
    Cause.TRIALS: ("max_trials", "trials", "{} trials"),
}


def account_of(progress: JobProgress) -> Account:
    """Return what the ledger knows of a job beside its receipts."""
    return Account(budget_report(progress), progress.retry_codes)


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
