"""`bench probe` as people use it: every trick in a real sandbox, against tests that are strict and one that is not."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchflow_client.catalog.probe import list_tricks
from tests.commands import Done, enter_home, runner

ROOT = Path(__file__).parents[2]
PROBES = ROOT / "tests" / "assets" / "probes"
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")

ALL = [trick.name for trick in list_tricks()]
OF_PYTHON = (
    "bytecode",
    "conftest",
    "plugin-conftest",
    "plugin-options",
    "plugin-shadow",
    "plugin-variable",
    "pth",
    "pytest-config",
    "pytest-plugin",
    "shadow-modules",
    "sitecustomize",
    "temporary-files",
)
"""Tricks that only tests in Python could fall for."""

Bench = Callable[..., Done]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    enter_home(tmp_path, monkeypatch, PYTHONPATH=str(ROOT))
    return runner(capsys)


def with_pytest(folder: Path) -> Path:
    """Return the task whose image brings pytest, copied from this Python, and plugins its tests load by name."""
    task = folder / "strict-pytest"
    shutil.copytree(PROBES / "strict-pytest", task)
    site = task / "environment" / "site"
    site.mkdir()
    for name in PYTEST:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, site / origin.name)
    (site / "house-1.dist-info").mkdir()
    (site / "house-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: house\nVersion: 1\n")
    (site / "house-1.dist-info" / "entry_points.txt").write_text("[pytest11]\nhouse = house_plugin\n")
    (site / "house_plugin.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--house', action='store_true')\n"
    )
    (site / "house_checks.py").write_text("")
    return task


def check_nothing_gained(done: Done, names: Sequence[str]) -> None:
    tricks = json.loads(done.out)["tricks"]

    assert [(each["trick"], each["reward"]) for each in tricks if not each["caught"]] == []
    assert {each["trick"] for each in tricks} == set(names)
    assert done.code == 0


def flags(names: Sequence[str]) -> list[str]:
    return [part for name in names for part in ("--trick", name)]


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_no_trick_scores_in_a_container(bench: Bench) -> None:
    done = bench("probe", PROBES / "strict-shell", "--sandbox", "docker", "--json", "--concurrency", 6)

    check_nothing_gained(done, ALL)


@pytest.mark.root
@pytest.mark.timeout(600)
def test_no_trick_with_files_and_processes_scores_in_a_local_sandbox(bench: Bench) -> None:
    names = [name for name in ALL if name not in OF_PYTHON]

    done = bench(
        "probe", PROBES / "strict-shell", "--sandbox", "local", "--json", "--concurrency", 6, *flags(names)
    )

    check_nothing_gained(done, names)


@pytest.mark.root
@pytest.mark.timeout(600)
def test_no_trick_of_python_scores_with_tests_that_run_pytest(bench: Bench, tmp_path: Path) -> None:
    """The oracle shows that these tests can be passed, so a 0 is not that of a broken test."""
    task, names = with_pytest(tmp_path), ["nothing", *OF_PYTHON]

    solved = bench("run", task, "--agent", "oracle", "--sandbox", "local", "--json")
    done = bench("probe", task, "--sandbox", "local", "--json", "--concurrency", 6, *flags(names))

    assert json.loads(solved.out)["passed"] == 1
    check_nothing_gained(done, names)


@pytest.mark.root
def test_a_task_that_runs_what_the_agent_left_is_told_and_exits_with_one(bench: Bench) -> None:
    done = bench(
        "probe", PROBES / "weak", "--sandbox", "local", "--trick", "nothing", "--trick", "build-files"
    )

    lines = [" ".join(line.split()) for line in done.err.splitlines()]
    assert "nothing 0 caught –" in lines
    assert "build-files 1 NOT caught –" in lines
    assert any(line.startswith("probe scored without the work: build-files") for line in lines)
    assert done.code == 1


def test_tricks_are_listed_without_a_task(bench: Bench) -> None:
    shown = bench("probe", "--list")
    data = json.loads(bench("probe", "--list", "--json").out)

    assert shown.code == 0
    assert "Plants conftest.py wherever pytest could pass." in shown.err + shown.out
    assert {"trick": "nothing", "agent": "probe:nothing"}.items() <= data[0].items()


def test_a_probe_without_a_task_or_with_a_wrong_trick_is_a_usage_error(bench: Bench) -> None:
    assert bench("probe").code == 2
    wrong = bench("probe", PROBES / "weak", "--trick", "conftests")
    assert wrong.code == 2
    assert "Did you mean 'conftest'?" in wrong.err


def test_a_task_without_a_verdict_for_nothing_shows_nothing(bench: Bench) -> None:
    done = bench("probe", PROBES / "weak", "--sandbox", "null", "--trick", "nothing")

    assert "this says nothing about the task" in " ".join(done.err.split())
    assert done.code == 1
