"""One flat row per trial, for CSV, tables and scripts."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.results.read import PublishedTrial
from benchflow_client.results.regrades import Judgement
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Receipt, TrialResult

Row = dict[str, Any]
"""Column -> text, number or None (no value)."""

COLUMNS = (
    "task",
    "agent",
    "model",
    "try",
    "outcome",
    "reward",
    "error_category",
    "code",
    "attempt",
    "seconds",
    "agent_seconds",
    "verifier_seconds",
    "input_tokens",
    "output_tokens",
    "tokens",
    "cost_usd",
    "skill_uses",
    "started_at",
    "finished_at",
    "folder",
    "trial",
    "index",
)
"""Columns every row has, in this order; `rewards.*`, `metrics.*` and `regrade.*` follow where a trial has them."""

_NONE: Mapping[str, Judgement] = {}

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet run a cell instead of showing it."""


def to_row(result: TrialResult) -> Row:
    """Return a trial's result as one flat row.

    Named rewards become ``rewards.<name>``, numbers beside them ``metrics.<name>``, criteria
    of a rubric ``rubric.<name>``.
    """
    usage, timing = result.agent_result, result.timing
    values = (
        result.task_name,
        result.agent,
        result.model,
        result.try_number,
        result.outcome.value,
        result.reward,
        result.error_category or result.verifier_error_category,
        result.failures[0].code if result.failures else None,
        result.attempt,
        timing.total,
        timing.agent_execution,
        timing.verifier,
        usage.n_input_tokens,
        usage.n_output_tokens,
        usage.total_tokens,
        usage.cost_usd,
        usage.n_skill_invocations,
        result.started_at.isoformat(),
        result.finished_at.isoformat(),
        result.rollout_name,
        result.trial,
        result.index,
    )
    return {**dict(zip(COLUMNS, values, strict=True)), **named_numbers(result.rewards)}


def receipt_row(plan: Plan, receipt: Receipt) -> Row:
    """Return the row of a trial of which only the receipt is known; other columns are None."""
    trial = plan.trial(receipt.trial_index)
    kind = FAILURES.get(receipt.code)
    return {
        **dict.fromkeys(COLUMNS),
        "task": trial.task.name,
        "agent": trial.agent.label,
        "model": trial.agent.spec.model,
        "try": trial.try_number,
        "outcome": receipt.outcome,
        "reward": receipt.reward,
        "error_category": kind.category if kind else None,
        "code": receipt.code or None,
        "attempt": receipt.attempts,
        "seconds": receipt.wall_s,
        "tokens": receipt.tokens,
        "cost_usd": receipt.cost_usd,
        "skill_uses": receipt.skill_uses,
        "folder": receipt.folder or None,
        "trial": trial.id,
        "index": receipt.trial_index,
    }


def published_row(plan: Plan, published: PublishedTrial, regrades: Mapping[str, Judgement] = _NONE) -> Row:
    """Return the row of a published trial: of its result, else of its receipt.

    Args:
        plan: The job's plan.
        published: The trial.
        regrades: Trial id -> what the last regrade of it found; it comes beside, as ``regrade.*``.
    """
    found = published.result
    row = receipt_row(plan, published.receipt) if found is None else to_row(found)
    judgement = regrades.get(row["trial"])
    if judgement is None:
        return row
    return {
        **row,
        "regrade.id": judgement.id,
        "regrade.reward": judgement.new_reward,
        "regrade.change": judgement.change,
    }


def named_numbers(rewards: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the finite numbers beside the scalar reward by their dotted place in result.json.

    A criterion of a rubric without a name is called by its position, from 0.
    """
    table = rewards or {}
    rubric = table.get("rubric")
    criteria = enumerate(rubric if isinstance(rubric, list) else ())
    scores = {str(item.get("name") or n): item.get("score") for n, item in criteria if isinstance(item, dict)}
    metrics = table.get("metrics")
    parts = {
        "rewards": {name: value for name, value in table.items() if name != "reward"},
        "metrics": metrics if isinstance(metrics, dict) else {},
        "rubric": scores,
    }
    return {
        f"{part}.{name}": value
        for part, numbers in parts.items()
        for name, value in numbers.items()
        if is_number(value)
    }


def is_number(value: Any) -> bool:
    """Return whether a value of a reward file is a finite number; booleans are none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def write_csv(rows: Iterable[Row], stream: TextIO) -> None:
    """Write rows with a header; the columns are `COLUMNS`, then all others sorted by name.

    None is an empty cell. Text that a spreadsheet would run as a formula gets a leading ``'``.
    """
    kept = list(rows)
    others = sorted({name for row in kept for name in row}.difference(COLUMNS))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_cell(name) for name in (*COLUMNS, *others)])
    for row in kept:
        writer.writerow([_cell(row.get(name)) for name in (*COLUMNS, *others)])


def _cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
