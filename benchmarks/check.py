"""Measure what `bench check` costs for plain tasks.

    python -m benchmarks.check                  1,000 tasks of five files, both forms
    python -m benchmarks.check --tasks 10000

Reading a file is the least a check can cost, so that is measured beside it, in one run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchflow_client.tasks.check import check

FORMS = (
    {
        "task.toml": 'version = "1.0"\n[metadata]\ntags = ["a"]\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n[environment]\ncpus = 1\nmemory_mb = 2048\n',
        "instruction.md": "Write the word done to /app/answer.txt.\n" * 20,
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nRUN echo one > one.txt\n",
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/sh\necho done > /app/answer.txt\n",
    },
    {
        "task.md": "---\nversion: '1.3'\nagent:\n  timeout_sec: 60\nsandbox:\n  cpus: 1\n---\n"
        + "Write the word done to /app/answer.txt.\n" * 20,
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
        "verifier/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        "verifier/data.txt": "1\n",
        "oracle/solve.sh": "#!/bin/sh\necho done > /app/answer.txt\n",
    },
)
GOAL_MS = 1.0


def write_tasks(folder: Path, tasks: int) -> int:
    """Write plain tasks, every second in the other form; returns the number of files."""
    files = 0
    for number in range(tasks):
        for path, text in FORMS[number % len(FORMS)].items():
            target = folder / f"task-{number}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            files += 1
    return files


def main() -> None:
    """Write tasks, check them, print milliseconds a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    with tempfile.TemporaryDirectory(prefix="bench-check-") as root:
        folder = Path(root)
        files = write_tasks(folder, parser.parse_args().tasks)
        check(folder / "task-0")  # imports and compiles
        begun = time.perf_counter()
        for path in folder.rglob("*"):
            if path.is_file():
                path.read_bytes()
        read = time.perf_counter()
        report = check(folder)
        checked = time.perf_counter()
    if not report.is_ok:
        raise SystemExit("A plain task was refused; the measurement says nothing.")
    bare_ms, check_ms = ((end - start) / files * 1e3 for start, end in ((begun, read), (read, checked)))
    print(f"{files} files: read {bare_ms:.2f} ms a file, check {check_ms:.2f} ms a file (goal < {GOAL_MS:g})")


if __name__ == "__main__":
    main()
