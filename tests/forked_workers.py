"""Worker programs that start in a moment: forked from a process that has imported everything.

They are the processes that `python -m benchflow_workers worker` starts, without the second of
imports; tests that kill dozens of workers start them this way.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class ForkedWorker:
    """A worker process; it is a child of the process it was forked from.

    Args:
        pid: Its process.
        log: Where its output goes.
    """

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        self._fd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return 0 once it has ended; how it ended is not known."""
        return 0 if select.select([self._fd], [], [], 0)[0] else None

    def wait(self, timeout: float) -> None:
        assert select.select([self._fd], [], [], timeout)[0], f"worker {self.pid} has not ended"

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WorkerSource:
    """Forks workers; see `worker_source`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def fork(
        self, arguments: Sequence[str], *, environ: Mapping[str, str], log: Path, shift_s: float = 0.0
    ) -> ForkedWorker:
        """Start a worker and return at once.

        Args:
            arguments: Of `bench worker`.
            environ: All its variables.
            log: Where its output goes.
            shift_s: How far its clock goes ahead.
        """
        order = {"arguments": list(arguments), "environ": dict(environ), "log": str(log), "shift_s": shift_s}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return ForkedWorker(int(self._process.stdout.readline()), log)


@contextmanager
def worker_source() -> Generator[WorkerSource, None, None]:
    """Start what workers are forked from, and end it afterwards; the workers are the caller's to end."""
    program = "from tests.forked_workers import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        try:
            yield WorkerSource(process)
        finally:
            process.kill()


def serve() -> None:
    """Fork a worker for each order on standard input and answer with its process id."""
    import benchflow_workers.__main__ as program
    import benchflow_workers.sandbox.null  # ruff: ignore[unused-import]

    # Nobody asks how they ended, so the kernel may forget them at once.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(program, json.loads(line))
        print(pid, flush=True)


def _become(program: Any, order: dict[str, Any]) -> None:
    """Turn this process into the worker program."""
    code = 1
    try:
        output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(order["environ"])
        os.chdir(Path(order["log"]).parent)
        random.seed()
        if order["shift_s"]:
            now, shift_s = time.time, order["shift_s"]
            time.time = lambda: now() + shift_s
        sys.argv = ["benchflow_workers", "worker", *order["arguments"]]
        code = program.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
