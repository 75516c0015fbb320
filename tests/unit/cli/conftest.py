"""A home of its own for each command, tasks, and a fleet without workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from benchflow_client.cli.main import run_command


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder of a user with no fleet configured."""
    for name in list(os.environ):
        if name.startswith("BENCHFLOW_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("BENCHFLOW_USER", "ana")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def tasks(home: Path) -> Path:
    """Return a folder of two tasks."""
    folder = home / "tasks"
    for name in ("one", "two"):
        for path, text in (
            ("task.toml", 'version = "1.0"\n'),
            ("instruction.md", "Do it.\n"),
            ("environment/Dockerfile", "FROM debian:bookworm-slim\n"),
            ("tests/test.sh", "exit 0\n"),
        ):
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return folder


@pytest.fixture
def broker(home: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """Configure an empty fleet whose store is the jobs folder; yields its Redis."""
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", redis_url)
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def bench(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command here; none ever shows a traceback."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run
