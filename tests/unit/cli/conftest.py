"""A home of its own for each command, tasks, and a fleet without workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.commands import Done, enter_home, runner, write_two_tasks


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder of a user with no fleet configured."""
    return enter_home(tmp_path, monkeypatch)


@pytest.fixture
def tasks(home: Path) -> Path:
    """Return a folder of two tasks."""
    return write_two_tasks(home / "tasks")


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

    return runner(capsys)
