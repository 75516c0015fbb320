"""Where the `bench` program begins: Ctrl-C is answered before anything heavy is imported.

This module imports next to nothing, so that an interrupt within the first moments ends the
program as a later one does: with exit code 130 and without a traceback.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    # Nothing has begun, so nothing has to be closed; an exception would surface in the middle of an import.
    os._exit(INTERRUPTED)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Not where the caller ignores interrupts, as a shell does for programs in the background.
    signal.signal(signal.SIGINT, _leave)


def main() -> None:
    """Run the command line; from here on Ctrl-C is a `KeyboardInterrupt`."""
    from benchflow_client.cli.main import main as run  # ruff: ignore[import-outside-top-level]  guarded by the handler

    try:
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
