"""Providers by name: made once, when they are first asked for; what is missing is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.host import host_findings, sandbox_problem
from benchflow_workers.sandbox.registry import KINDS, SandboxRegistry
from benchflow_workers.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
WITHOUT_DOCKER = """
import sys

class Missing:
    def find_spec(self, name, path, target=None):
        if name == "docker":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from pathlib import Path
from benchflow_client.errors import MissingExtraError
from benchflow_workers.sandbox.registry import SandboxRegistry
from benchflow_workers.settings import WorkerSettings
registry = SandboxRegistry(WorkerSettings(), state_dir=Path("unused"))
try:
    registry.get("docker")
except MissingExtraError as error:
    print(error.message, error.hint, sep="|")
"""
WITHOUT_A_PART_OF_PYTHON = WITHOUT_DOCKER.replace(
    'name == "docker"', 'name == "benchflow_workers.sandbox.docker_engine"'
)


@pytest.fixture
def registry(tmp_path: Path) -> SandboxRegistry:
    return SandboxRegistry(WorkerSettings(null_exec_s=0.5), state_dir=tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_made_and_says_its_name(registry: SandboxRegistry, kind: str) -> None:
    assert registry.get(kind).kind == kind


def test_provider_is_made_once_for_all_threads(registry: SandboxRegistry) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(registry.get("null"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)

    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_unknown_kind_lists_those_there_are(registry: SandboxRegistry) -> None:
    with pytest.raises(SandboxError) as caught:
        registry.get("podman")

    assert caught.value.code == "sandbox.unavailable"
    assert "'podman'" in caught.value.message
    assert "docker, local, null" in caught.value.hint


def test_missing_extra_gives_the_command_that_installs_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_DOCKER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.stdout.startswith("sandbox 'docker' needs an extra that is not installed.|Run: pip install '")
    assert run.stdout.strip().endswith("[docker]'")


def test_missing_module_that_no_extra_brings_is_not_called_one() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_PART_OF_PYTHON],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert run.returncode == 1
    assert "ModuleNotFoundError" in run.stderr
    assert run.stdout == ""


def test_kind_that_works_has_no_problem_and_one_that_cannot_be_made_has(registry: SandboxRegistry) -> None:
    assert sandbox_problem(registry, "null") is None

    problem = sandbox_problem(registry, "podman")
    assert problem is not None
    assert "podman" in problem.message


def test_host_reports_every_kind_in_plain_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BENCHFLOW_DOCKER_HOST", f"unix://{tmp_path}/no-daemon.sock")

    found = {finding["kind"]: finding for finding in json.loads(json.dumps(list(host_findings())))}

    assert list(found) == list(KINDS)
    assert found["null"] == {"kind": "null", "text": "works", "problem": None, "fix": ""}
    assert found["docker"]["problem"]
    assert found["docker"]["fix"]
    assert found["docker"]["text"] == ""
