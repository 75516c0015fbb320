"""`bench new`: a small task that works, to be changed into the one its author has in mind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchflow_client.errors import TaskError

_TASK_TOML = """\
schema_version = "1.3"

[metadata]
difficulty = "easy"
tags = []

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 120.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 10240
network_mode = "public"
"""

_INSTRUCTION = """\
The file `/app/numbers.txt` holds one whole number per line.
Write their sum, as one number, to `/app/sum.txt`.
"""

_DOCKERFILE = """\
FROM debian:bookworm-slim
WORKDIR /app
RUN printf '3\\n4\\n35\\n' > numbers.txt
"""

_TEST = """\
#!/bin/bash
# Runs after the agent, as root. The last line decides: 1 = solved, 0 = not, or a number between.
mkdir -p /logs/verifier
if [ "$(tr -d '[:space:]' < /app/sum.txt)" = 42 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""

_SOLUTION = """\
#!/bin/bash
# What the oracle runs to show that the task can be solved.
set -e
sum=0
while read -r number; do
  sum=$((sum + number))
done < /app/numbers.txt
echo "$sum" > /app/sum.txt
"""

_FILES = {
    "task.toml": _TASK_TOML,
    "instruction.md": _INSTRUCTION,
    "environment/Dockerfile": _DOCKERFILE,
    "tests/test.sh": _TEST,
    "solution/solve.sh": _SOLUTION,
}


def scaffold(name: str, parent: Path) -> Path:
    """Make a new task that the oracle solves and an idle agent does not.

    Args:
        name: Name of the task, one path segment.
        parent: Folder to make it in; made when missing.

    Returns:
        The new folder.

    Raises:
        TaskError: The name is no folder name, exists already, or cannot be written.
    """
    if name in {"", ".", ".."} or name.startswith((".", "-")) or "/" in name or not name.isprintable():
        raise TaskError(
            f"{name!r} cannot name a task.",
            hint="Use one folder name, such as sort-numbers, that does not start with a dot or a dash.",
        )
    folder = parent / name
    if os.path.lexists(folder):
        raise TaskError(f"{str(folder)!r} exists already.", hint="Choose another name.")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except OSError as error:
        raise TaskError(f"{str(folder)!r} cannot be made: {error.strerror or error}.") from error
    try:
        for path, text in _FILES.items():
            _write(folder / path, text)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise TaskError(f"{str(folder)!r} cannot be written: {error.strerror or error}.") from error
    return folder


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    path.chmod(0o755 if path.suffix == ".sh" else 0o644)
