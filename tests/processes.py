"""Which processes work for the embedded fleets of a test."""

from __future__ import annotations

import os
from pathlib import Path

from benchflow_client.embedded.process import has_ended


def processes_of(state: Path) -> set[int]:
    """Return the living processes that work for embedded fleets of a state folder."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and not has_ended(int(entry.name)):
            try:
                place = os.readlink(entry / "cwd")
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if place.startswith(str(state)) or f"BENCHFLOW_EMBEDDED={state}".encode() in environ:
                found.add(int(entry.name))
    return found
