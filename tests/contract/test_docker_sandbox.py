"""The Docker provider keeps the sandbox contract."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from benchflow_workers.sandbox.base import Sandbox, SandboxSpec
from benchflow_workers.sandbox.conformance import CHECKS, Ability, Bench, Check
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from tests.web_server import WebServer, web_server

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

ABILITIES: frozenset[Ability] = frozenset({
    "users",
    "limits",
    "no-network",
    "tmpfs",
    "own-init",
    "background",
    "images",
    "scripting",
})
IS_ROOT = os.geteuid() == 0
"""Lists of names are enforced by a worker as root only."""


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with web_server(*(() if IS_ROOT else (0,))) as server:
        yield server


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory, web: WebServer) -> DockerSandboxes:
    return DockerSandboxes(DockerOptions(state_dir=tmp_path_factory.mktemp("state"), egress=web.egress))


@pytest.fixture(scope="module")
def make_spec(docker_image: str) -> Callable[[], SandboxSpec]:
    def make() -> SandboxSpec:
        name = f"conformance-{secrets.token_hex(6)}"
        return SandboxSpec(
            name=name,
            labels={"bf.trial": name},
            image=docker_image,
            build_context=None,
            build_digest="",
            network="no-network",
            memory_mb=512,
        )

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    provider: DockerSandboxes, make_spec: Callable[[], SandboxSpec]
) -> AsyncGenerator[Sandbox, None]:
    sandbox = await provider.open(make_spec())
    yield sandbox
    await sandbox.close()


def needs(check: Check) -> Sequence[pytest.MarkDecorator]:
    """Return what the host must have: names are filtered by the worker, with root's rights."""
    return [pytest.mark.root] if "lists" in check.needs else []


@pytest.mark.parametrize(
    "check", [pytest.param(check, marks=needs(check), id=check.name) for check in CHECKS]
)
async def test_provider_keeps_the_contract(
    check: Check,
    provider: DockerSandboxes,
    make_spec: Callable[[], SandboxSpec],
    shared: Sandbox,
    web: WebServer,
    tmp_path: Path,
) -> None:
    abilities = ABILITIES | {"lists"} if IS_ROOT else ABILITIES
    bench = Bench(provider, make_spec, tmp_path, shared=shared, abilities=abilities, web_name=web.name)
    assert check.missing(bench) == frozenset()

    await check.run(bench)
