"""Solve rates over the tasks of a job: pass@k and pass^k with what they leave out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchflow_client.stats.rates import pass_at_k, pass_hat_k

__all__ = ["SolveRate", "default_ks", "solve_rates"]

_LARGEST_K = 64  # beyond it a summary grows and nobody reads on; ask for a k to get more


@dataclass(frozen=True, slots=True)
class SolveRate:
    """One k; both rates are means over the tasks with at least k scored trials."""

    k: int
    pass_at_k: float | None  # at least one of k passes, 0..1; None = no task has k scored trials
    pass_hat_k: float | None  # all of k pass, 0..1; None = no task has k scored trials
    n_tasks: int  # tasks the means are over
    n_short: int  # tasks left out, with fewer than k scored trials


def default_ks(smallest: int) -> tuple[int, ...]:
    """Return 1, the powers of two and the multiples of five up to `smallest` (and 64)."""
    top = min(smallest, _LARGEST_K)
    powers = {1 << bit for bit in range(top.bit_length())}
    fives = set(range(5, top + 1, 5))
    return tuple(sorted(k for k in powers | fives if k <= top))


def solve_rates(counts: Sequence[tuple[int, int]], ks: Sequence[int] | None = None) -> tuple[SolveRate, ...]:
    """Return the solve rates for each k.

    Args:
        counts: One (passed, scored) per task.
        ks: Positive numbers of trials; None = `default_ks` of the least scored task
            that was scored at all.

    Raises:
        UsageError: A count or k is outside its range.
    """
    kinds = Counter(counts)
    if ks is None:
        ks = default_ks(min((scored for _, scored in kinds if scored), default=0))
    return tuple(_solve_rate(kinds, k) for k in ks)


def _solve_rate(kinds: Counter[tuple[int, int]], k: int) -> SolveRate:
    long = {kind: tasks for kind, tasks in kinds.items() if kind[1] >= k}
    n_tasks = sum(long.values())
    n_short = sum(kinds.values()) - n_tasks
    if not n_tasks:
        return SolveRate(k, None, None, 0, n_short)
    some = math.fsum(tasks * pass_at_k(scored, passed, k) for (passed, scored), tasks in long.items())
    every = math.fsum(tasks * pass_hat_k(scored, passed, k) for (passed, scored), tasks in long.items())
    return SolveRate(k, some / n_tasks, every / n_tasks, n_tasks, n_short)
