"""The test report as far as an agent may be told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchflow_workers.users.base import TestReport
from benchflow_workers.verifiers.reports import read_report

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["results", "summary", "tests", "name", "status", "passed"]), inner, max_size=4
        )
    ),
    max_leaves=20,
)
SAME_FOLDER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, value: object) -> Path:
    (folder / "ctrf.json").write_text(json.dumps(value))
    return folder


def test_counts_and_names_of_what_failed_are_read(tmp_path: Path) -> None:
    tests = [
        {"name": "adds", "status": "passed"},
        {"name": "divides\n by zero", "status": "failed"},
        {"name": "sleeps", "status": "skipped"},
        {"name": "x" * 900, "status": "other"},
        {"status": "failed"},
        "odd",
    ]
    write(tmp_path, {"results": {"summary": {"tests": 5, "passed": 1}, "tests": tests}})

    assert read_report(tmp_path) == TestReport(1, 5, ("divides by zero", "x" * 300))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff", b"[]", b'{"results": 7}', b'{"results": {"tests": {}}}']
)
def test_what_is_no_report_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ctrf.json").write_bytes(content)

    assert read_report(tmp_path) == TestReport()


def test_no_report_and_a_link_say_nothing(tmp_path: Path) -> None:
    assert read_report(tmp_path) == TestReport()
    (tmp_path / "ctrf.json").symlink_to("/etc/passwd")
    assert read_report(tmp_path) == TestReport()


@SAME_FOLDER
@given(VALUES)
def test_whatever_the_tests_wrote_is_read_without_an_error(tmp_path: Path, value: object) -> None:
    report = read_report(write(tmp_path, value))

    assert all(name and len(name) <= 300 and "\n" not in name for name in report.failed_names)
