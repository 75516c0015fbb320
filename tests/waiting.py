"""The one way tests wait for something another thread or process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_S = 0.02
"""Seconds between two looks; a look may be a request to another process."""


def until(
    condition: Callable[[], object], *, seconds: float = 60.0, what: Callable[[], object] = lambda: ""
) -> None:
    """Wait until something is true.

    Args:
        condition: Looked at again and again.
        seconds: After so many it never becomes true, and the test fails.
        what: What there is to see then, e.g. a log.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true after {seconds:g} s: {what()}"
        threading.Event().wait(POLL_S)
