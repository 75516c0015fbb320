"""What people read about a job that goes on: which trials run again, which are kept, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from benchflow_client.plan.retry import Choice, Decision
from benchflow_client.report import Column, Line, Report, Row, Table
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import SCORED
from benchflow_client.wording import plural

_LISTED = 20  # trials of a kind; `bench results --trials` lists all that have ended


def choice_report(choice: Choice) -> Report:
    """Return what becomes of each trial: a headline, then a row per trial with the reason."""
    again = [decision for decision in choice.decisions if decision.is_again]
    kept = [decision for decision in choice.decisions if not decision.is_again]
    # Those without a verdict first: they are the ones a person may want otherwise.
    kept.sort(key=lambda decision: decision.outcome in SCORED)
    text = f"{choice.plan.job}: {plural(len(kept), 'finished trial')} kept, {len(again)} to run"
    columns = (Column(), Column(shrink=2), Column(shrink=1), Column(), Column(shrink=3))
    rows = (*_rows(choice, again, "run"), *_rows(choice, kept, "keep"))
    left_out = max(0, len(again) - _LISTED) + max(0, len(kept) - _LISTED)
    more = (Line(f"{plural(left_out, 'more trial')}: bench results {choice.plan.job} --trials", tone="dim"),)
    return (
        Line(text, label="resume"),
        Table(columns, rows),
        *(more if left_out else ()),
        *_advice(choice, kept),
    )


def choice_data(choice: Choice) -> dict[str, Any]:
    """Return what becomes of each trial as plain JSON data."""
    return {
        "job": choice.plan.job,
        "kept": choice.n_kept,
        "to_run": len(choice.again),
        "trials": [
            {
                "trial": choice.plan.trial(decision.index).id,
                "index": decision.index,
                "runs": decision.is_again,
                "outcome": decision.outcome or None,
                "reason": decision.reason,
            }
            for decision in choice.decisions
        ],
    }


def resumed_report(choice: Choice, summary: Summary) -> Report:
    """Return the last line of a resumed run: how many trials were reused, how many ran now."""
    outcomes = Counter(
        cancelled=sum(group.cancelled for group in summary.groups),
        not_started=sum(group.not_started for group in summary.groups),
    )
    ran = choice.n_ended(outcomes)
    text = f"Resumed job {choice.plan.job}: {plural(choice.n_kept, 'finished trial')} reused, {ran} ran now"
    return (Line(text if choice.again else f"{text}; these are the earlier results"),)


def _advice(choice: Choice, kept: Sequence[Decision]) -> Iterator[Line]:
    """Say how to run what is kept without a verdict: the task is at fault, or it was not asked for."""
    codes = sorted({decision.code or decision.outcome for decision in kept if decision.outcome not in SCORED})
    if codes:
        words = " ".join(f"--retry {code}" for code in codes)
        yield Line(
            f"kept without a verdict; to run it all the same: bench resume {choice.plan.job} {words}",
            tone="dim",
        )


def _rows(choice: Choice, decisions: Sequence[Decision], verb: str) -> Iterator[Row]:
    for decision in decisions[:_LISTED]:
        trial = choice.plan.trial(decision.index)
        number = f"try {trial.try_number}" if choice.plan.spec.tries > 1 else ""
        yield Row((verb, trial.task.name, trial.agent.label, number, decision.reason))
