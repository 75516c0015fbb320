"""Kills processes of a sandbox completely, by the mark of a command or by their user."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TAG = "BF_EXEC_ID"
"""Variable that marks all processes of one command."""

_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class Process:
    """A live process as /proc shows it."""

    pid: int
    parent: int
    uids: frozenset[int]
    environ: bytes


Matcher = Callable[[Process], bool]
"""Says whether a process is meant; children of one that is meant are meant too."""


def by_tag(tag: str) -> Matcher:
    """Match what one command started."""
    mark = f"{TAG}={tag}".encode()
    return lambda process: mark in process.environ.split(b"\0")


def by_uid(uid: int) -> Matcher:
    """Match what runs as a user: real, effective, saved or file system id."""
    return lambda process: uid in process.uids


def kill_all(matches: Matcher, *, exempt: Callable[[], frozenset[int]], deadline_s: float) -> list[int]:
    """Kill until none is left, and return those that could not be killed in time.

    All are stopped before the first is killed, so that nothing is forked in
    between. What cannot be killed is stuck in the kernel.
    """
    deadline = time.monotonic() + deadline_s
    meant: set[int] = set()
    clean_scans = 0
    while clean_scans < 2:  # a process that is being started shows no environment for a moment
        found = _find(matches, meant, exempt())
        if not found:
            clean_scans += 1
            continue
        clean_scans = 0
        if time.monotonic() > deadline:
            return sorted(found)
        is_new = not found <= meant
        meant |= found
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if is_new else signal.SIGKILL)
        if not is_new:
            time.sleep(_PAUSE_S)
    return []


def _find(matches: Matcher, meant: set[int], exempt: frozenset[int]) -> set[int]:
    processes = [process for process in scan() if process.pid not in exempt]
    found = {process.pid for process in processes if process.pid in meant or matches(process)}
    while True:
        more = {p.pid for p in processes if p.parent in found and p.pid not in found}
        if not more:
            return found
        found |= more


def scan() -> Iterator[Process]:
    """Yield every process of this pid namespace except the first, this one and those that ended."""
    own = {1, os.getpid()}
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in own:
            process = _read(int(name))
            if process is not None:
                yield process


def _read(pid: int) -> Process | None:
    folder = Path("/proc", str(pid))
    try:
        status = (folder / "status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    if fields[b"State"].split()[0] in {b"Z", b"X"}:
        return None
    try:
        environ = (folder / "environ").read_bytes()
    except OSError:
        environ = b""
    return Process(pid, int(fields[b"PPid"]), frozenset(map(int, fields[b"Uid"].split())), environ)
