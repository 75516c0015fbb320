"""The doctor says what it found and what to do; it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client import doctor
from benchflow_client.catalog.agents import list_agents
from benchflow_client.doctor import check_machine
from benchflow_client.report import Check
from benchflow_client.settings import load, process_environ

Bench = Callable[..., Any]


def findings(environ: dict[str, str] | None = None) -> dict[str, Check]:
    checks = check_machine(load(), process_environ() if environ is None else environ)
    return {check.subject: check for check in checks}


def test_a_machine_without_a_fleet_runs_one_of_its_own(home: Path) -> None:
    found = findings()

    assert found["python"].status == "PASS"
    assert "none configured; runs use" in found["broker"].text
    assert (found["store"].status, found["store"].text) == ("PASS", "the jobs folder")
    assert "GB free at" in found["disk"].text
    assert found["agents"].text.split(", ") == [entry.name for entry in list_agents()]
    assert found["null"].status == "PASS"
    assert found["docker"].status == "WARN"
    assert list(home.iterdir()) == []


def test_a_broker_that_is_not_there_is_a_failure_with_its_fix(
    home: Path, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", "redis://:word@127.0.0.1:1/0")

    found = findings()
    shown = bench("doctor")

    assert (found["broker"].status, found["store"].status) == ("FAIL", "WARN")
    assert "redis://127.0.0.1:1/0 does not answer" in found["broker"].text
    assert "BENCHFLOW_STORE_URL is not set" in found["store"].text
    assert (shown.code, shown.out, "FAIL  broker" in shown.err) == (1, "", True)
    assert "word" not in shown.err


def test_a_broker_without_a_worker_is_a_warning(
    redis_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_BROKER_URL", redis_url.removesuffix("/0") + "/7")

    found = findings()

    assert (found["broker"].status, "no worker is alive" in found["broker"].text) == ("WARN", True)


def test_a_store_that_cannot_be_written_is_a_failure(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way\n")
    monkeypatch.setenv("BENCHFLOW_STORE_URL", str(tmp_path / "file"))

    assert findings()["store"].status == "FAIL"


def test_what_is_written_to_try_the_store_is_removed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE_URL", str(tmp_path / "store"))

    assert findings()["store"].status == "PASS"
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []


def test_little_room_and_an_old_python_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LEAST_FREE_GB", 10**9)
    monkeypatch.setattr(doctor, "_LEAST_PYTHON", (99, 0))

    found = findings()

    assert (found["disk"].status, found["disk"].fix) == ("WARN", "Images and results need some room.")
    assert (found["python"].status, "too old" in found["python"].text) == ("FAIL", True)


def test_sandboxes_that_cannot_be_checked_are_no_failure_of_a_client(home: Path) -> None:
    """A laptop has no need of them: the packages of a worker may be missing."""
    found = findings({"PATH": "/nonexistent", "BENCHFLOW_LEASE_TTL_S": "never"})

    assert found["sandboxes"].status == "WARN"
    assert "pip install 'benchflow-workers[worker]'" in found["sandboxes"].fix


def test_a_healthy_machine_ends_with_0_and_json(bench: Bench, home: Path) -> None:
    done = bench("doctor", "--json")

    assert done.code == 0
    assert {row["status"] for row in json.loads(done.out)} <= {"PASS", "WARN"}
