"""Numbers, spans and names as people read them; plain text, no terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["NONE", "age", "clock", "flag", "money", "name_some", "plural", "ratio", "span", "tokens"]

NONE = "–"
"""What stands where there is no value; never 0."""

_DIGITS = 6  # beyond a millionth a rate is shown rounded after all


def ratio(value: float | None) -> str:
    """Return a rate or reward with two decimals; only a whole is ``1.00``, only nothing ``0.00``.

    A value that two decimals would round to 0 or 1 gets more of them.
    """
    if value is None or not math.isfinite(value):
        return NONE
    for digits in range(2, _DIGITS + 1):
        text = f"{value:.{digits}f}"
        if float(text) not in {0.0, 1.0} or value in {0.0, 1.0}:
            break
    return text


def money(cost_usd: float | None, *, coverage: float | None = 1.0) -> str:
    """Return US dollars; ``≥`` in front when only a part of the trials know their cost."""
    if cost_usd is None:
        return NONE
    digits = 4 if 0 < abs(cost_usd) < 0.01 else 2
    mark = "≥" if coverage is not None and coverage < 1 else ""
    return f"{mark}${cost_usd:.{digits}f}" if cost_usd < 1000 else f"{mark}${cost_usd:,.0f}"


def tokens(count: int | None, *, coverage: float | None = 1.0) -> str:
    """Return a number of tokens as ``812``, ``4.1k`` or ``2.6M``; ``≥`` when a part is unknown."""
    if count is None:
        return NONE
    mark = "≥" if coverage is not None and coverage < 1 else ""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{mark}{count / limit:.1f}{unit}"
    return f"{mark}{count}"


def clock(seconds: float) -> str:
    """Return a running time as ``0:05``, ``12:34`` or ``1:02:03``."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """Return how long something took: ``0.4 s``, ``16 s``, ``3m04s``, ``2h05m`` or ``3 d``."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400} d"


def age(seconds: float) -> str:
    """Return roughly how long ago something was: ``12 s``, ``1 min``, ``2 h`` or ``3 d``."""
    whole = max(0, int(seconds))
    for limit, unit in ((48 * 3600, 86400), (3600, 3600), (60, 60)):
        if whole >= limit:
            return f"{whole // unit} {'d' if unit == 86400 else 'h' if unit == 3600 else 'min'}"
    return f"{whole} s"


def flag(key: str) -> str:
    """Return the flag of a command that sets a key: ``--max-trials`` for ``max_trials``."""
    return f"--{key.replace('_', '-')}"


def plural(number: int, noun: str) -> str:
    """Return ``1 task`` or ``2 tasks``; for nouns that take an s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def name_some(names: Iterable[str], *, most: int = 3, total: int | None = None) -> str:
    """Return the first names and how many more there are: ``a, b, c (+7)``.

    Args:
        names: The names that are known.
        most: How many are written out.
        total: How many there are in all; None = as many as names.
    """
    every = list(names)
    rest = (len(every) if total is None else total) - min(most, len(every))
    return ", ".join(every[:most]) + (f" (+{rest})" if rest > 0 else "")
