"""Processes that outlive the command that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STOP_TIMEOUT_S = 60.0
"""A draining worker closes its sandboxes in this time; then it is killed."""


def spawn_detached(argv: Sequence[str], *, environ: Mapping[str, str], log: Path, stdin: bytes = b"") -> int:
    """Start a program in a session of its own, with no file of ours, and return its process id.

    Args:
        argv: Program (a path) and arguments.
        environ: All its variables.
        log: File its output is appended to.
        stdin: What it reads; at most a pipe's buffer, some kilobytes.
    """
    reader, writer = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(writer, stdin)
        os.close(writer)
        return os.posix_spawn(
            argv[0],
            list(argv),
            dict(environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                *_close_inherited(),
            ],
            setsid=True,
        )
    finally:
        os.close(reader)
        os.close(output)


def _close_inherited() -> Iterator[tuple[int, int]]:
    """Yield what closes files a shell or `make` left open: somebody may wait for their end."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.get_inheritable(int(name)):
                yield os.POSIX_SPAWN_CLOSE, int(name)


def writers_of(log: Path) -> list[int]:
    """Return the ids of the processes whose output goes to a log: from their first moment, whatever they do."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if output.readlink() == log.resolve():
                found.append(int(output.parts[2]))
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process is over, taking leave of it when it is a child of ours.

    One that only waits for its parent, who started it and does not look, is over too.
    """
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    try:
        facts = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    state = facts.rpartition(b") ")[2][:1]
    return state in {b"Z", b"X"}


def end(pid: int) -> None:
    """Ask a process to end and wait for it; one that stays is killed."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while not has_ended(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
