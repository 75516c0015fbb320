"""One flat row per trial from its receipt alone: what results.jsonl holds."""

from __future__ import annotations

from typing import Any

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Receipt


def receipt_row(plan: Plan, receipt: Receipt) -> dict[str, Any]:
    """Return a trial's row; `reward` is None where there is no verdict."""
    trial = plan.trial(receipt.trial_index)
    kind = FAILURES.get(receipt.code)
    return {
        "trial": trial.id,
        "task": trial.task.name,
        "task_digest": trial.task.digest,
        "agent": trial.agent.label,
        "model": trial.agent.spec.model,
        "try": trial.try_number,
        "outcome": receipt.outcome,
        "reward": receipt.reward,
        "failure": receipt.code or None,
        "category": kind.category if kind else None,
        "fault": kind.fault.value if kind else None,
        "attempts": receipt.attempts,
        "wall_s": receipt.wall_s,
        "cost_usd": receipt.cost_usd,
        "tokens": receipt.tokens,
        "folder": receipt.folder or None,
    }
