"""Rates of repeated yes-or-no outcomes, with their intervals; pure functions on counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from benchflow_client.errors import UsageError

__all__ = ["design_effect", "difference_interval", "mean", "pass_at_k", "pass_hat_k", "wilson_interval"]


def mean(values: Iterable[float]) -> float | None:
    """Return the mean of the finite values, or None when there is none.

    Guarantees: correctly rounded sum, so the order of the values does not matter.
    """
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else None


def wilson_interval(
    passed: int, scored: int, *, confidence: float = 0.95, effect: float = 1.0
) -> tuple[float, float]:
    """Return the score interval of a pass rate.

    Args:
        passed: Trials that passed, 0 <= passed <= scored.
        scored: Trials with a verdict.
        confidence: Share of intervals that hold the true rate, 0 < confidence < 1.
        effect: Design effect of correlated trials (`design_effect`); the interval is
            that of `scored / effect` independent trials with the same rate.

    Returns:
        (low, high), 0 <= low <= passed/scored <= high <= 1; (0, 1) when nothing is scored.

    Raises:
        UsageError: A number is outside its range.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical
    inference", JASA 22. Assumes trials of one task are exchangeable.
    """
    _check_counts(passed, scored)
    if not 0 < confidence < 1 or not effect >= 1:
        raise UsageError(
            f"An interval needs 0 < confidence < 1 and effect >= 1, not {confidence!r} and {effect!r}.",
            hint="The usual confidence is 0.95; independent trials have effect 1.",
        )
    if scored == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    size = scored / effect
    rate = passed / scored
    scale = 1 + z * z / size
    centre = (rate + z * z / (2 * size)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / size + z * z / (4 * size * size))
    low = 0.0 if passed == 0 else min(rate, centre - half)
    high = 1.0 if passed == scored else max(rate, centre + half)
    return max(0.0, low), min(1.0, high)


def difference_interval(
    first: tuple[int, int],
    second: tuple[int, int],
    *,
    confidence: float = 0.95,
    effects: tuple[float, float] = (1.0, 1.0),
) -> tuple[float, float]:
    """Return the interval of the difference of two pass rates, first minus second.

    Args:
        first: (passed, scored).
        second: (passed, scored).
        confidence: Share of intervals that hold the true difference, 0 < confidence < 1.
        effects: Design effect of each; see `wilson_interval`.

    Returns:
        (low, high), within -1..1; (-1, 1) when one has nothing scored.

    Raises:
        UsageError: A number is outside its range.

    Source: Newcombe (1998), "Interval estimation for the difference between independent
    proportions", Statistics in Medicine 17, method 10: the score intervals of both. Takes them as
    independent; where the same tasks are in both and their outcomes agree, it is wider than it need be.
    """
    one, two = (
        wilson_interval(passed, scored, confidence=confidence, effect=effect)
        for (passed, scored), effect in zip((first, second), effects, strict=True)
    )
    if not first[1] or not second[1]:
        return -1.0, 1.0
    p, q = first[0] / first[1], second[0] / second[1]
    low = p - q - math.hypot(p - one[0], two[1] - q)
    high = p - q + math.hypot(one[1] - p, q - two[0])
    return max(-1.0, low), min(1.0, high)


def design_effect(counts: Sequence[tuple[int, int]]) -> float:
    """Return by how much repeats of the same tasks inflate the variance of the pass rate.

    Trials of one task resemble each other, so twice the tries are not twice the
    knowledge: the effective number of trials is `scored / design_effect`.

    Args:
        counts: One (passed, scored) per task; tasks with nothing scored are ignored.

    Returns:
        A factor >= 1; 1 when no task is repeated, when there is one task only, or when
        all outcomes are equal, because then the counts say nothing about the resemblance.

    Raises:
        UsageError: A count is outside its range.

    Source: Kish (1965), "Survey Sampling", for 1 + (m - 1) rho with m = sum n^2 / sum n
    under unequal sizes; rho by the analysis-of-variance estimator reviewed by Ridout,
    Demetrio and Firth (1999), Biometrics 55, cut to 0..1.
    """
    for passed, scored in counts:
        _check_counts(passed, scored)
    used = [(passed, scored) for passed, scored in counts if scored]
    total = sum(scored for _, scored in used)
    if len(used) < 2 or total == len(used):
        return 1.0
    passes = sum(passed for passed, _ in used)
    squares = sum(scored * scored for _, scored in used)
    explained = math.fsum(passed * passed / scored for passed, scored in used)
    between = (explained - passes * passes / total) / (len(used) - 1)
    within = (passes - explained) / (total - len(used))
    typical = (total - squares / total) / (len(used) - 1)
    spread = between + (typical - 1) * within
    if spread <= 0:
        return 1.0
    correlation = min(1.0, max(0.0, (between - within) / spread))
    return 1 + (squares / total - 1) * correlation


def pass_at_k(scored: int, passed: int, k: int) -> float:
    """Return the chance that at least one of `k` of a task's trials passed.

    Args:
        scored: Trials of the task with a verdict (n).
        passed: Those that passed (c).
        k: Trials drawn without replacement, 1 <= k <= scored.

    Raises:
        UsageError: A number is outside its range.

    Source: Chen et al. (2021), "Evaluating large language models trained on code",
    equation 1: 1 - C(n - c, k) / C(n, k); unbiased.
    """
    _check_draw(scored, passed, k)
    every = math.comb(scored, k)
    return (every - math.comb(scored - passed, k)) / every


def pass_hat_k(scored: int, passed: int, k: int) -> float:
    """Return the chance that all of `k` of a task's trials passed: C(c, k) / C(n, k).

    Args:
        scored: Trials of the task with a verdict (n).
        passed: Those that passed (c).
        k: Trials drawn without replacement, 1 <= k <= scored.

    Raises:
        UsageError: A number is outside its range.

    Source: Yao et al. (2024), "tau-bench", pass^k; unbiased.
    """
    _check_draw(scored, passed, k)
    return math.comb(passed, k) / math.comb(scored, k)


def _check_counts(passed: int, scored: int) -> None:
    if not 0 <= passed <= scored:
        raise UsageError(
            f"{passed} passed of {scored} scored trials is impossible.",
            hint="Give counts with 0 <= passed <= scored.",
        )


def _check_draw(scored: int, passed: int, k: int) -> None:
    _check_counts(passed, scored)
    if not 1 <= k <= scored:
        raise UsageError(
            f"k = {k} needs at least {max(k, 1)} scored trials of each task, but one has {scored}.",
            hint="Choose 1 <= k <= scored trials, or run more tries.",
        )
