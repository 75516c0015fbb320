"""The local provider keeps the sandbox contract: as root, and as one user, with root's rights and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.conformance import CHECKS, Ability, Bench, Check
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from tests.web_server import WebServer, web_server

ROOT = Path(__file__).parents[2]
NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"),
    "env",  # setpriv itself still has root's rights when it starts a program
)
EXPECTED_GAPS = {"death-of-the-sandbox-is-told", "missing-image-is-told"}
"""No kill from inside reaches the first process; any image name stands for the host's root."""

SINGLE_USER_GAPS = EXPECTED_GAPS | {check.name for check in CHECKS if check.needs & {"users", "lists"}}
"""Inside a user namespace with one user nobody else exists, and a worker that is not root lays no cable into it."""

ABILITIES: frozenset[Ability] = frozenset({"no-network", "tmpfs", "background", "scripting"})
WITH_USERS: frozenset[Ability] = frozenset({"users", "limits", "lists"})


def make_spec() -> SandboxSpec:
    name = f"conform-{uuid.uuid4().hex[:8]}"
    return SandboxSpec(name=name, labels={"bf.test": name}, image=None, build_context=None, build_digest="")


def mounted_sandboxes(state_dir: Path) -> list[str]:
    return [line for line in Path("/proc/mounts").read_text().splitlines() if str(state_dir) in line]


@pytest.fixture(
    scope="module", params=[pytest.param("namespaces", marks=pytest.mark.root), "rootless"], ids=str
)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def state_dir(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(mode) / "state"


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with web_server(*(() if os.geteuid() == 0 else (0,))) as server:
        yield server


@pytest.fixture
async def bench(mode: str, state_dir: Path, tmp_path: Path, web: WebServer) -> AsyncIterator[Bench]:
    provider = LocalSandboxes(LocalOptions(state_dir, mode=mode, egress=web.egress))  # type: ignore[arg-type]
    abilities = ABILITIES | WITH_USERS if mode == "namespaces" else ABILITIES
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield Bench(provider, make_spec, scratch, abilities=abilities, web_name=web.name)
    await provider.close()
    assert list((state_dir / "sandboxes").glob("*")) == []
    assert mounted_sandboxes(state_dir) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_local_keeps_the_contract(check: Check, bench: Bench, mode: str) -> None:
    gaps = EXPECTED_GAPS if mode == "namespaces" else SINGLE_USER_GAPS | _unlimited(bench)
    if check.missing(bench):
        assert check.name in gaps, f"{check.name} needs {sorted(check.missing(bench))}"
        return

    await check.run(bench)


def _unlimited(bench: Bench) -> set[str]:
    """Limits of one user hold only where control groups may be written, which is the host's decision."""
    return {check.name for check in CHECKS if "limits" in check.needs and "limits" not in bench.abilities}


@pytest.mark.root
def test_local_keeps_the_contract_as_an_unprivileged_user() -> None:
    """The rootless half again, in a process without any right; with root's it could pass by luck."""
    python = _python_for_nobody()
    folder = Path(f"/var/tmp/bf-nobody-{uuid.uuid4().hex[:8]}")
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    command = [*AS_NOBODY, python]
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"]
    options = ["-m", "pytest", "-q", *plugins, "-k", "rootless", f"--basetemp={folder}/base"]
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PYTHONPATH": f"{sysconfig.get_path('purelib')}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    try:
        done = subprocess.run(
            [*command, *options, __file__],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=285, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def _python_for_nobody() -> str:
    """Return an interpreter of this version that others may run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates: list[Callable[[], str | None]] = [
        lambda: sys.executable,
        lambda: shutil.which(version, path="/usr/bin:/usr/local/bin"),
    ]
    for candidate in candidates:
        path = candidate()
        if path is not None and _runs_as_nobody(path):
            return path
    pytest.skip(f"no {version} that an unprivileged user may run")


def _runs_as_nobody(path: str) -> bool:
    done = subprocess.run([*AS_NOBODY, path, "-c", "pass"], capture_output=True, check=False, timeout=30)
    return done.returncode == 0
