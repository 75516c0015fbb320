"""Numbers that describe a list of measurements."""


def median(values):
    """Return the value in the middle of the sorted values."""
    values.sort()
    middle = len(values) // 2
    return values[middle]
