"""What a process has used, as Linux tells it."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_s(pid: int) -> float:
    """Return the processor seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return a process's resident memory in MB."""
    return _status_mb(pid, "VmRSS:")


def peak_mb(pid: int) -> float:
    """Return the most memory a process has held, in MB."""
    return _status_mb(pid, "VmHWM:")


def _status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0
