#!/bin/sh
cat > /app/summary.py <<'CODE'
"""Numbers that describe a list of measurements."""


def median(values):
    """Return the value in the middle, or the mean of the two in the middle."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("median of no values")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
CODE
