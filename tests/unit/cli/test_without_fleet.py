"""No fleet configured and none running: every command says so alike, and starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Bench = Callable[..., Any]

OF_A_JOB = [
    ["watch", "nothing"],
    ["results", "nothing"],
    ["fetch", "nothing", "out"],
    ["cancel", "nothing"],
    ["cancel", "nothing.one.nop.1"],
    ["pause", "nothing"],
    ["resume", "nothing"],
    ["recover", "nothing"],
    ["run", "tasks", "--agent", "nop", "--resume", "nothing"],
    ["submit", "tasks", "--agent", "nop", "--resume", "nothing", "--dry-run"],
]
OF_A_FLEET = [["workers"], ["drain", "box/1"], ["sandboxes"], ["limits"]]


@pytest.mark.parametrize("command", OF_A_JOB, ids=" ".join)
def test_a_job_that_is_not_there_is_a_wrong_name_whatever_is_asked_of_it(
    bench: Bench, tasks: Path, home: Path, tmp_path: Path, command: list[str]
) -> None:
    done = bench(*command)

    assert (done.code, done.out) == (2, "")
    assert "No job 'nothing' in the folder 'jobs'" in done.err
    assert "BENCHFLOW_BROKER_URL" in done.err
    assert [path.name for path in home.iterdir()] == ["tasks"]
    assert not (tmp_path / "state/embedded").exists()


@pytest.mark.parametrize("command", OF_A_FLEET, ids=" ".join)
def test_what_needs_a_fleet_says_how_to_get_one(bench: Bench, home: Path, command: list[str]) -> None:
    done = bench(*command)

    assert (done.code, done.out) == (3, "")
    assert "No broker is configured and no embedded fleet runs" in done.err
    assert "bench up" in done.err
    assert list(home.iterdir()) == []


def test_a_broker_that_does_not_answer_is_no_wrong_name(
    bench: Bench, tasks: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", "redis://127.0.0.1:1/0")

    assert {bench(*command).code for command in (*OF_A_JOB, *OF_A_FLEET)} == {3}
