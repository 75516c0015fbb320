"""The tests of a task as files, and what their scripts say about pytest."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.verifiers.environment import place_of_tests, verifier_environment
from benchflow_workers.verifiers.pytest_plugins import PytestUse, pytest_use
from benchflow_workers.verifiers.registry import verifier_of
from benchflow_workers.verifiers.script import ScriptVerifier
from benchflow_workers.verifiers.task_tests import find_tests


def task(verifier_dir: str | None = "tests", **verifier: Any) -> Task:
    return Task(
        name="fetch-note",
        form="task.toml",
        instruction="",
        config=TaskConfig.model_validate({"verifier": verifier}),
        verifier_dir=verifier_dir,
        oracle_dir=None,
        has_dockerfile=True,
        has_compose=False,
    )


def folder_with(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.mark.parametrize("verifier_dir", [None, "tests"])
def test_a_task_without_a_test_script_is_refused_by_name(tmp_path: Path, verifier_dir: str | None) -> None:
    with pytest.raises(VerifierError, match=r"'fetch-note' has no tests/test\.sh") as caught:
        find_tests(task(verifier_dir), tmp_path)

    assert caught.value.code == "verifier.no_tests"


def test_shell_scripts_travel_with_unix_line_ends_and_other_files_as_they_are(tmp_path: Path) -> None:
    files = {
        "test.sh": b"#!/bin/bash\r\necho 1\r\n",
        "lib/more.sh": b"x=1\r\n",
        "run": b"#!/usr/bin/env bash\r\ntrue\r\n",
        "data.csv": b"a,b\r\n",
        "check.py": b"#!/usr/bin/python3\r\n",
        "fine.sh": b"true\n",
    }

    found = find_tests(task(), folder_with(tmp_path, files))
    with tarfile.open(fileobj=io.BytesIO(found.archive())) as archive:
        placed = {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if member.isreg()
        }

    assert found.interpreter == "/bin/bash"
    assert placed == {
        "tests/test.sh": b"#!/bin/bash\necho 1\n",
        "tests/lib/more.sh": b"x=1\n",
        "tests/run": b"#!/usr/bin/env bash\ntrue\n",
        "tests/data.csv": b"a,b\r\n",
        "tests/check.py": b"#!/usr/bin/python3\r\n",
        "tests/fine.sh": b"true\n",
    }


def test_a_test_script_for_python_keeps_its_bytes(tmp_path: Path) -> None:
    script = b"#!/usr/bin/env python3\r\nprint('x\\r\\n')\r\n"

    *_, last = find_tests(task(), folder_with(tmp_path, {"test.sh": script})).uploads()

    assert last.content == script


def test_the_test_script_is_executable_and_the_folder_open(tmp_path: Path) -> None:
    first, *_, last = find_tests(task(), folder_with(tmp_path, {"test.sh": b"true\n"})).uploads()

    assert (first.target, first.mode) == ("/tests", 0o755)
    assert (last.target, last.mode) == ("/tests/test.sh", 0o755)


def test_links_of_a_tests_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside.sh").write_bytes(b"secret\r\n")
    root = folder_with(tmp_path, {"test.sh": b"true\n"})
    (root / "tests" / "link.sh").symlink_to(tmp_path / "outside.sh")
    (root / "tests" / "requirements.txt").symlink_to(tmp_path / "outside.sh")

    uploads = find_tests(task(), root).uploads()

    assert [upload.target for upload in uploads] == ["/tests", "/tests/test.sh"]
    assert pytest_use(task(), root / "tests") == PytestUse((), may_use_image=False)


def test_size_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    found = find_tests(task(), folder_with(tmp_path, {"test.sh": b"12345", "a/b": b"123"}))

    assert found.size_bytes() == 8


def test_the_form_decides_where_tests_stand() -> None:
    assert place_of_tests(task("verifier")) == "/verifier"
    assert place_of_tests(task("tests")) == "/tests"


def test_the_environment_names_the_paths_and_lets_the_task_override() -> None:
    env = verifier_environment(task(), "/my app", {"HOME": "/home/x", "TOKEN": "t"}, ["ctrf", "asyncio"])

    assert env["BENCHFLOW_REWARD_TEXT"] == "/logs/verifier/reward.txt"
    assert env["BENCHFLOW_REWARD_JSON"] == "/logs/verifier/reward.json"
    assert env["BENCHFLOW_REWARD_DETAILS_JSON"] == "/logs/verifier/reward-details.json"
    assert env["BENCHFLOW_VERIFIER_DIR"] == "/tests"
    assert env["BENCHFLOW_TASK_ID"] == "fetch-note"
    assert env["BENCHFLOW_AGENT_CWD"] == "/my app"
    assert env["HOME"] == "/home/x"
    assert env["TOKEN"] == "t"
    assert env["LD_PRELOAD"] == ""
    assert env["PYTEST_ADDOPTS"] == (
        "-c /dev/null --confcutdir=/tests -p no:cacheprovider --rootdir='/my app' -p ctrf -p asyncio"
    )


@pytest.mark.parametrize(
    ("script", "plugins", "may_use_image"),
    [
        ("pytest /tests", (), True),
        ("python3 -m pytest --ctrf /logs/verifier/ctrf.json", ("ctrf",), True),
        ("uvx --with pytest==8 --with pytest-json-ctrf==0.3.5 pytest --ctrf x", ("ctrf",), False),
        ("pip install pytest-asyncio pytest-timeout==2\npytest", ("asyncio", "timeout"), True),
        ("uv run pytest --json-report", ("pytest_jsonreport",), False),
        ("python3 -m venv /v && /v/bin/pytest", (), False),
        ("echo --ctrffy pytests my-pytest-asyncio-fork", (), False),
        ("./check.sh", (), False),
    ],
)
def test_plugins_are_inferred_from_what_a_script_installs_and_uses(
    tmp_path: Path, script: str, plugins: tuple[str, ...], may_use_image: bool
) -> None:
    root = folder_with(tmp_path, {"test.sh": script.encode()})

    use = pytest_use(task(), root / "tests")

    assert (use.plugins, use.may_use_image) == (plugins, may_use_image)


@pytest.mark.parametrize(
    ("script", "kept_out", "left"),
    [
        ("python3 -m pytest /tests", {"pytest", "json", "ast", "calendar", "_heapq"}, {"queue"}),
        ("python3 -m pytest /tests  # of calendar.py", {"pytest", "html"}, {"calendar"}),
        ("python -I -m pytest /tests", {"pytest", "ast"}, set()),
        ("python3.12 -c 'import json'", {"json", "os"}, {"ast", "types"}),
        ("python3 - <<EOF\nimport json\nEOF", {"json"}, {"ast"}),
        ("python3 <<EOF\nimport json\nEOF", {"json"}, {"ast"}),
        ("pytest /tests", set(), {"json"}),
        ("python3 /tests/check.py -m 3", set(), {"json"}),
    ],
)
def test_modules_are_kept_out_of_the_workspace_where_python_would_look_there_first(
    tmp_path: Path, script: str, kept_out: set[str], left: set[str]
) -> None:
    root = folder_with(tmp_path, {"test.sh": script.encode()})

    shadows = set(pytest_use(task(), root / "tests").shadows)

    assert kept_out <= shadows
    assert not left & shadows


def test_declared_plugins_come_first_and_only_once(tmp_path: Path) -> None:
    root = folder_with(tmp_path, {"test.sh": b"pytest --ctrf x", "requirements.txt": b"pytest-mock\n"})

    use = pytest_use(task(pytest_plugins=["my_plugin", "ctrf", "-x; rm"]), root / "tests")

    assert use.plugins == ("my_plugin", "ctrf", "pytest_mock")


def test_a_script_verifier_serves_test_script_tasks() -> None:
    assert isinstance(verifier_of(task()), ScriptVerifier)


def test_another_kind_of_verifier_is_refused_by_name() -> None:
    with pytest.raises(VerifierError, match="'llm-judge'") as caught:
        verifier_of(task(type="llm-judge"))

    assert caught.value.code == "task.unsupported"
