"""Processes that outlive their command: how they start, how one knows that they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_client.embedded import process
from benchflow_client.embedded.process import end, has_ended, spawn_detached
from tests.waiting import until

SHELL = "/bin/sh"


def test_a_process_reads_its_input_and_writes_its_log_and_nothing_else_is_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    left_open, writer = os.pipe()
    os.set_inheritable(writer, True)

    try:
        pid = spawn_detached(
            [SHELL, "-c", 'cat; echo "$NAME" >&2; ls /proc/self/fd | wc -l; ps -o sid= -p $$'],
            environ={"NAME": "ana", "PATH": os.defpath},
            log=log,
            stdin=b"said\n",
        )
        until(lambda: has_ended(pid))
    finally:
        os.close(left_open)
        os.close(writer)

    said, name, descriptors, session = log.read_text().split()
    assert (said, name, int(session)) == ("said", "ana", pid)
    assert int(descriptors) <= 4  # three of its own, and the listed folder
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_is_added_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")

    pid = spawn_detached([SHELL, "-c", "echo after"], environ={}, log=log)
    until(lambda: has_ended(pid))

    assert log.read_text() == "before\nafter\n"


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn_detached(["/no/such/program"], environ={}, log=tmp_path / "log")


def test_a_process_is_over_once_for_all(tmp_path: Path) -> None:
    pid = spawn_detached([SHELL, "-c", "read line"], environ={}, log=tmp_path / "log", stdin=b"")
    until(lambda: has_ended(pid))

    assert has_ended(pid)
    end(pid)


def test_a_running_process_is_asked_to_end(tmp_path: Path) -> None:
    pid = spawn_detached(
        [SHELL, "-c", "trap 'echo bye; exit 0' TERM; echo hi; while :; do sleep 0.05; done"],
        environ={"PATH": os.defpath},
        log=tmp_path / "log",
    )
    until(lambda: "hi" in (tmp_path / "log").read_text())

    assert not has_ended(pid)
    end(pid)

    assert (tmp_path / "log").read_text() == "hi\nbye\n"
    assert has_ended(pid)


def test_a_process_that_stays_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_TIMEOUT_S", 0.2)
    pid = spawn_detached(
        [SHELL, "-c", "trap '' TERM; echo hi; while :; do sleep 0.05; done"],
        environ={"PATH": os.defpath},
        log=tmp_path / "log",
    )
    until(lambda: "hi" in (tmp_path / "log").read_text())

    end(pid)

    assert has_ended(pid)


def test_a_process_whose_parent_does_not_look_is_over_too() -> None:
    """A notebook that started a fleet holds the dead ones; `bench down` elsewhere must not wait for it."""
    program = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        assert not has_ended(pid)
        end(pid)
        assert has_ended(pid)
        assert Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    finally:
        parent.communicate("")


def test_a_process_that_was_killed_by_somebody_is_over(tmp_path: Path) -> None:
    pid = spawn_detached(["/bin/sleep", "60"], environ={}, log=tmp_path / "log")

    os.kill(pid, signal.SIGKILL)

    until(lambda: has_ended(pid))
