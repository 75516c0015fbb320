"""A task folder written from literal files, the smallest that can be run where nothing else is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

MINIMAL: Mapping[str, str] = {
    "task.toml": 'version = "1.0"\n',
    "instruction.md": "Write the word done into /app/answer.txt.\n",
    "environment/Dockerfile": "FROM debian:bookworm-slim\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "echo done > /app/answer.txt\n",
}

TaskMaker = Callable[..., Path]


@pytest.fixture
def make_task(tmp_path: Path) -> TaskMaker:
    """Return a function that writes a task; `None` leaves a file out, other files replace or add."""

    def make(files: Mapping[str, str | bytes | None] | None = None, *, name: str = "fetch-note") -> Path:
        folder = tmp_path / name
        for path, content in {**MINIMAL, **(files or {})}.items():
            if content is not None:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return make


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for converted tasks."""
    return tmp_path_factory.mktemp("room")


@pytest.fixture
def make_document(make_task: TaskMaker) -> TaskMaker:
    """Return a function that writes a task in the task.md form."""

    def make(
        text: str, files: Mapping[str, str | bytes | None] | None = None, *, name: str = "fetch-note"
    ) -> Path:
        left_out = dict.fromkeys(MINIMAL, None)
        native = {
            "environment/Dockerfile": "FROM debian:bookworm-slim\n",
            "verifier/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
            "oracle/solve.sh": "true\n",
        }
        return make_task({**left_out, **native, "task.md": text, **(files or {})}, name=name)

    return make
