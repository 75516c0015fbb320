"""What the worker makes of the lines a guard of pytest's plugins left, and of those it did not."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import Completed
from benchflow_workers.verifiers.pytest_guard import (
    Guard,
    GuardReport,
    guard_of,
    guard_warnings,
    is_missing,
    new_guard,
    read_report,
    with_guard,
)

GUARD = Guard("ab12", "secret")
RUN = Completed(
    exit_code=0, stdout=b"", stderr=b"benchflow-verify: started\n", stdout_bytes=0, stderr_bytes=0, timed_out=False,
    oom_killed=False, duration_s=0.0,
)  # fmt: skip


def sealed(word: str, *, key: str = "secret", **facts: str) -> str:
    line = json.dumps({"word": word, **facts})
    return f"{hmac.new(key.encode(), line.encode(), hashlib.sha256).hexdigest()} {line}\n"


def report(logs: Path, *lines: str) -> GuardReport:
    (logs / "pytest-guard.log").write_text("".join(lines), encoding="utf-8")
    return read_report(GUARD, logs)


def test_every_run_has_a_name_and_a_key_of_its_own() -> None:
    guards = [new_guard() for _ in range(20)]

    assert len({guard.module for guard in guards}) == len({guard.key for guard in guards}) == 20
    assert all(guard.place == f"/_benchflow_guard_{guard.run}" for guard in guards)


def test_a_run_tells_its_guard_and_one_without_tells_none() -> None:
    assert guard_of(with_guard(RUN, GUARD)) == GUARD
    assert guard_of(RUN) is None


def test_the_file_for_the_sandbox_ends_with_what_this_run_is_told() -> None:
    (upload,) = GUARD.uploads("/my app")

    assert upload.target == "/_benchflow_guard_ab12/guard_ab12.py"
    assert upload.content is not None
    compile(upload.content, "guard", "exec")
    assert upload.content.decode().splitlines()[-1] == (
        "install('/_benchflow_guard_ab12', **{'started': '/opt/benchflow/agent-started', 'workspace': '/my app', "
        "'markers': '/logs/verifier/pytest-guard.log', 'key': 'secret'})"
    )


def test_sessions_are_counted_by_their_sealed_lines(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        sealed("begun"), sealed("ended"), sealed("begun"), sealed("cut"), sealed("refused", plugin="p", file="/app/p.py"),
    )  # fmt: skip

    assert found == GuardReport(begun=2, ended=1, cut=1, refused=(("p", "/app/p.py"),))
    assert not found.is_broken_off
    assert [warning.partition(":")[0] for warning in guard_warnings(found)] == [
        "pytest refused plugin 'p'",
        "something that ran in a session of pytest tried to end it early as a success",
    ]


@pytest.mark.parametrize(
    "line",
    [
        sealed("ended", key="guessed"), "ended\n", "\n", "é \x00 {}\n", "0" * 64 + ' {"word": "ended"}\n',
        sealed("ended").replace("ended", "begun"),
    ],
)  # fmt: skip
def test_a_line_without_the_seal_is_told_and_counts_for_nothing(tmp_path: Path, line: str) -> None:
    found = report(tmp_path, sealed("begun"), line)

    assert (found.begun, found.ended, found.is_forged, found.is_broken_off) == (1, 0, True, True)
    assert guard_warnings(found) == ("pytest-guard.log has lines that the plugin guard did not write",)


def test_no_file_a_folder_and_a_link_in_its_place_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(sealed("ended"))
    nothing = read_report(GUARD, tmp_path)
    os.symlink("elsewhere", tmp_path / "pytest-guard.log")

    assert nothing == read_report(GUARD, tmp_path) == GuardReport()
    assert guard_warnings(nothing) == ()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("ImportError: Error importing plugin \"guard_ab12\": No module named 'guard_ab12'", True),
        ("ModuleNotFoundError: No module named 'guard_ab12'", True),
        ("No module named 'guard_ab123'", False),
        ('Error importing plugin "ctrf"; -p guard_ab12', False),
        ("", False),
    ],
)
def test_a_guard_that_was_not_found_shows_in_what_the_tests_printed_or_wrote(
    tmp_path: Path, text: str, missing: bool
) -> None:
    folder = tmp_path / "logs" / "deep"
    folder.mkdir(parents=True)
    (folder / "pytest.txt").write_text(text)

    assert is_missing(GUARD, text.encode(), None) is missing
    assert is_missing(GUARD, b"", tmp_path / "logs") is missing
    assert not is_missing(GUARD, b"", None)
