"""The program's first moments: Ctrl-C ends it without a traceback, wherever its imports are."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.{before})

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from benchflow_client.cli.start import main
main()
"""


def start(*arguments: str, at: str, before: str = "default_int_handler") -> subprocess.CompletedProcess[str]:
    """Run `bench` and interrupt it when it looks for a module."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(at=at, before=before), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "module", ["benchflow_client.cli.main", "cyclopts", "rich.console", "celery", "redis"]
)
def test_an_interrupt_during_an_import_ends_the_program_without_a_word(module: str) -> None:
    done = start("jobs", at=module)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_program_in_the_background_is_not_interrupted() -> None:
    done = start("--version", at="cyclopts", before="SIG_IGN")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_without_an_interrupt_the_command_is_run() -> None:
    done = start("agents", "--nope", at="nothing")

    assert (done.returncode, "--nope" in done.stderr) == (2, True)


def test_once_imported_an_interrupt_is_what_commands_wait_for(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "agents"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.modules.pop("benchflow_client.cli.start", None)
        program = importlib.import_module("benchflow_client.cli.start")
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with pytest.raises(SystemExit) as caught:
            program.main()
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert (caught.value.code, after) == (0, signal.default_int_handler)
    assert "oracle" in capsys.readouterr().err


def test_the_installed_program_begins_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert project["project"]["scripts"]["bench"] == "benchflow_client.cli.start:main"
