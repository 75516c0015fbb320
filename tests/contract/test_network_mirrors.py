"""What an operator opens of the worker's own network, and an agent that tries to get more through it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import Command, Sandbox, SandboxProvider, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from benchflow_workers.sandbox.network import NetworkPolicy, switch_network
from benchflow_workers.sandbox.network_log import take_refusals
from tests.web_server import WebServer, web_server

pytestmark = pytest.mark.root

ASK = 'timeout 50 bash -c \'exec 3<>"/dev/tcp/$0/$1" && printf "$2" >&3 && cat <&3\' "$1" "$2" "$3" 2>/dev/null || echo none'
PIPELINED = (
    "POST /first HTTP/1.1\\r\\nHost: web.example\\r\\nContent-Length: 2\\r\\n\\r\\nhi"
    "GET /second HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n"
)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture(
    params=[pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root)]
)
async def sandbox(request: pytest.FixtureRequest, web: WebServer, tmp_path: Path) -> AsyncIterator[Sandbox]:
    is_docker = request.param == "docker"
    egress = replace(web.egress, private=("web.example:8080",))
    provider: SandboxProvider = (
        DockerSandboxes(DockerOptions(tmp_path, egress=egress))
        if is_docker
        else LocalSandboxes(LocalOptions(tmp_path, egress=egress))
    )
    name = f"mirrors-{secrets.token_hex(5)}"
    image = request.getfixturevalue("docker_image") if is_docker else None
    spec = SandboxSpec(name, {"bf.trial": name}, image, None, "", has_changing_network=True)
    made = await provider.open(spec)
    yield made
    await made.close()
    await provider.close()


async def ask(sandbox: Sandbox, port: int, request: str) -> str:
    argv = ("sh", "-c", ASK, "sh", "web.example", str(port), request)
    return (await sandbox.exec(Command(argv, timeout_s=60))).stdout.decode()


def get(path: str, host: str = "web.example:8080") -> str:
    return f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n"


async def test_opened_server_is_reached_on_its_port_and_nothing_else_is(
    sandbox: Sandbox, web: WebServer
) -> None:
    await switch_network(sandbox, NetworkPolicy("allowlist", allowed=("listed.example",)))

    mirror = await ask(sandbox, 8080, get("/simple"))
    plain = await ask(sandbox, 80, get("/simple", "web.example"))
    other = await ask(sandbox, 8080, get("/simple", "private.example:8080"))

    assert mirror.splitlines()[-1] == "host web.example:8080 path /simple sent "
    assert plain.startswith("HTTP/1.1 403 Forbidden\r\nX-BenchFlow-Blocked: not-allowlisted")
    assert other.startswith("HTTP/1.1 403 Forbidden\r\nX-BenchFlow-Blocked: not-allowlisted")
    assert web.asked == ["/simple"]
    assert [line["url"] for line in take_refusals(sandbox)] == [
        "http://web.example/simple",
        "http://private.example/simple",
    ]


async def test_no_server_is_opened_to_a_sandbox_without_network(sandbox: Sandbox, web: WebServer) -> None:
    await switch_network(sandbox, NetworkPolicy("no-network"))

    assert await ask(sandbox, 8080, get("/simple")) == "none\n"
    assert web.asked == []


async def test_second_request_of_a_connection_is_never_sent_on(sandbox: Sandbox, web: WebServer) -> None:
    await switch_network(sandbox, NetworkPolicy("allowlist", allowed=("listed.example",)))

    said = await ask(sandbox, 8080, PIPELINED.replace("Host: web.example", "Host: web.example:8080"))

    assert said.splitlines()[-1] == "host web.example:8080 path /first sent hi"
    assert web.asked == ["/first"]
