"""A registry that turns pulls away, asked by the real engine: the trial waits and tries again, the task is not at fault."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes

pytestmark = pytest.mark.docker

BUSY = {"errors": [{"code": "TOOMANYREQUESTS", "message": "You have reached your pull rate limit."}]}
UNKNOWN = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}


class Registry(BaseHTTPRequestHandler):
    """Lets everybody in; of its images one is never there and the others are too much asked for."""

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self._answer(200, {})
        elif "missing" in self.path:
            self._answer(404, UNKNOWN)
        else:
            self._answer(429, BUSY)

    do_HEAD = do_GET

    def _answer(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """Return the address of a registry on this host, which engines ask without TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def spec() -> SandboxSpec:
    name = f"registry-{secrets.token_hex(6)}"
    return SandboxSpec(
        name=name, labels={"bf.trial": name}, image=None, build_context=None, build_digest="", memory_mb=256
    )


async def code_of(spec: SandboxSpec, tmp_path: Path) -> str:
    provider = DockerSandboxes(DockerOptions(state_dir=tmp_path / "state"))
    with pytest.raises(SandboxError) as caught:
        await provider.open(spec)
    return caught.value.code


async def test_a_pull_that_is_turned_away_is_tried_again_later(
    registry: str, spec: SandboxSpec, tmp_path: Path
) -> None:
    code = await code_of(replace(spec, image=f"{registry}/team/task:1"), tmp_path)

    assert code == "sandbox.registry_busy"
    assert (FAILURES[code].category, FAILURES[code].is_retried) == ("sandbox_setup", True)


async def test_a_base_image_that_is_turned_away_is_no_fault_of_the_dockerfile(
    registry: str, spec: SandboxSpec, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {registry}/team/base:1\nRUN true\n")
    digest = secrets.token_hex(8)

    code = await code_of(replace(spec, build_context=tmp_path, build_digest=digest), tmp_path)

    assert code == "sandbox.registry_busy"


async def test_an_image_that_is_not_there_stays_missing(
    registry: str, spec: SandboxSpec, tmp_path: Path
) -> None:
    assert await code_of(replace(spec, image=f"{registry}/team/missing:1"), tmp_path) == (
        "sandbox.image_missing"
    )
