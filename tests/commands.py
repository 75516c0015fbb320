"""Commands that run in the test's own process, the home they start from, and tasks for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.cli.main import run_command


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


def runner(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return a function that runs a command in this process; none ever shows a traceback."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Done(code, out, err)

    return run


def enter_home(folder: Path, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Path:
    """Become a user with no fleet configured, in an empty current folder below the given one."""
    for name in [name for name in os.environ if name.startswith("BENCHFLOW_")]:
        monkeypatch.delenv(name)
    home = folder / "home"
    home.mkdir()
    own = {"HOME": str(home), "BENCHFLOW_STATE_DIR": str(folder / "state"), "BENCHFLOW_USER": "ana"}
    for name, value in (own | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)
    return home


def write_two_tasks(folder: Path) -> Path:
    """Write the tasks `one` and `two`; returns their folder."""
    for name in ("one", "two"):
        for path, text in (
            ("task.toml", 'version = "1.0"\n'),
            ("instruction.md", f"Do {name}.\n"),
            ("environment/Dockerfile", "FROM debian:bookworm-slim\n"),
            ("tests/test.sh", "exit 0\n"),
        ):
            (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / path).write_text(text)
    return folder
