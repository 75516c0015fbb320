"""What later verifiers said of a job's trials, beside its own numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from benchflow_client.report.blocks import Line, Report
from benchflow_client.wording import name_some, plural, ratio

if TYPE_CHECKING:  # the records are only read here, and pydantic is the slow part of starting
    from benchflow_client.results.regrades import Judgement

__all__ = ["judged_again_report"]


def judged_again_report(judgements: Collection[Judgement]) -> Report:
    """Return the latest verdicts of trials that were judged again beside their first ones; empty = there are none."""
    if not judgements:
        return ()
    latest = sorted({item.id: item.created_at for item in judgements}.items(), key=lambda item: item[1])
    kinds = Counter(item.change.partition(" ")[0] for item in judgements)
    changes = ", ".join(f"{count} {change}" for change, count in sorted(kinds.items()))
    before = [item.original_reward for item in judgements]
    after = [item.new_reward for item in judgements]
    text = (
        f"{plural(len(judgements), 'trial')} judged again: {changes} · passed {_passed(before)} -> {_passed(after)}, "
        f"mean reward {_mean(before)} -> {_mean(after)} · by {name_some([name for name, _ in reversed(latest)])}"
    )
    return (Line(text, label="again", tone="warn"),)


def _passed(rewards: Collection[float | None]) -> str:
    return f"{sum(reward is not None and reward >= 1 for reward in rewards)}/{len(rewards)}"


def _mean(rewards: Collection[float | None]) -> str:
    scored = [reward for reward in rewards if reward is not None]
    return ratio(sum(scored) / len(scored) if scored else None)
