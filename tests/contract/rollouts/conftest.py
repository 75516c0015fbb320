"""A real sandbox for agents and verifiers, of each kind this host has, made as a worker makes it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import INSTRUCTION_PATH
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxProvider, SandboxSpec, Upload
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from benchflow_workers.sandbox.registry import SandboxRegistry
from benchflow_workers.settings import WorkerSettings
from tests.web_server import WebServer

CASES = Path(__file__).parents[2] / "assets" / "cases"
WORKDIR = "/app"

KINDS = (
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("local", marks=pytest.mark.root),
)

Open = Callable[..., Awaitable[Sandbox]]
"""Opens one more sandbox; closed at the end of the test."""

MakeTask = Callable[..., Task]
"""Makes a task and its folder below `task_dir`."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cases() -> Path:
    return CASES


@pytest.fixture
async def provider(kind: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SandboxProvider]:
    registry = SandboxRegistry(WorkerSettings(), state_dir=tmp_path_factory.mktemp("state"))
    made = registry.get(kind)
    yield made
    await made.close()


@pytest.fixture
async def web_provider(kind: str, web: WebServer, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """Yield a provider whose sandboxes reach the `web` of the test's own module."""
    state = tmp_path / "state"
    made: SandboxProvider = (
        DockerSandboxes(DockerOptions(state, egress=web.egress))
        if kind == "docker"
        else LocalSandboxes(LocalOptions(state, egress=web.egress))
    )
    yield made
    await made.close()


@pytest.fixture
async def open_sandbox(provider: SandboxProvider, tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Sandbox] = []
    context = tmp_path / "environment"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM debian:bookworm-slim\nWORKDIR {WORKDIR}\n", encoding="utf-8")

    async def open_one(uploads: Sequence[Upload] = (), env: Mapping[str, str] | None = None) -> Sandbox:
        name = f"rollout-{uuid.uuid4().hex[:12]}"
        base = (
            Upload("/logs/agent", mode=0o755),
            Upload("/logs/verifier", mode=0o777),
            Upload("/logs/artifacts", mode=0o777),
            Upload(INSTRUCTION_PATH, content=b"Write finished into out.txt.\n"),
        )
        spec = SandboxSpec(
            name=name,
            labels={"bf.fleet": "tests", "bf.trial": name},
            image=None,
            build_context=context,
            build_digest="rollout-tests-1",
            env=env or {},
            uploads=(*base, *uploads),
        )
        sandbox = await provider.open(spec)
        opened.append(sandbox)
        return sandbox

    yield open_one
    for sandbox in opened:
        await sandbox.close()


@pytest.fixture
async def sandbox(open_sandbox: Open) -> Sandbox:
    return await open_sandbox()


@pytest.fixture
def make_task() -> MakeTask:
    def make(*, native: bool = False, **tables: Any) -> Task:
        return Task(
            name="fetch-note",
            form="task.md" if native else "task.toml",
            instruction="Write finished into out.txt.",
            config=TaskConfig.model_validate(tables),
            verifier_dir="verifier" if native else "tests",
            oracle_dir="oracle" if native else "solution",
            has_dockerfile=True,
            has_compose=False,
        )

    return make


@pytest.fixture
def shell() -> Callable[..., Awaitable[str]]:
    """Run a script and return what it prints; its failure fails the test."""

    async def run(sandbox: Sandbox, script: str, *, user: str | int = "root") -> str:
        done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=60, user=user))
        assert done.exit_code == 0, (script, done)
        return done.stdout.decode()

    return run
