"""A door in a sandbox leads from its loopback to one server of the worker, for it alone, and to nothing else."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.ledger.sandboxes import MemorySandboxBook
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxProvider, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.listener import LoopbackTarget, UnixTarget, listen_inside, open_door
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from benchflow_workers.sandbox.network import NetworkPolicy, switch_network
from benchflow_workers.sandbox.null import NullOptions, NullSandboxes
from benchflow_workers.sandbox.recorded import RecordedSandboxes
from tests.local_server import LocalServer, loopback_server, unix_server
from tests.waiting import until

pytestmark = pytest.mark.root

ASK = (
    'timeout 50 bash -c \'exec 3<>"/dev/tcp/$0/$1" && printf "GET /v1 HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n" >&3 '
    '&& tail -n 1 <&3\' "$1" "$2" 2>/dev/null || echo nothing'
)
HOLD = 'exec 3<>"/dev/tcp/$1/$2"; echo open > /tmp/held; cat <&3; echo closed'

Open = Callable[..., Awaitable[Sandbox]]


@pytest.fixture(
    params=[pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root)]
)
async def provider(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    state = tmp_path / "state"
    inner: SandboxProvider = (
        DockerSandboxes(DockerOptions(state))
        if request.param == "docker"
        else LocalSandboxes(LocalOptions(state))
    )
    yield RecordedSandboxes(inner, MemorySandboxBook())
    await inner.close()


@pytest.fixture
async def open_sandbox(provider: SandboxProvider, request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    opened: list[Sandbox] = []
    is_docker = provider.kind == "docker"
    image = request.getfixturevalue("docker_image") if is_docker else None

    async def open_one(**changes: object) -> Sandbox:
        name = f"doors-{secrets.token_hex(6)}"
        spec = SandboxSpec(name, {"bf.fleet": "tests", "bf.trial": name}, image, None, "")
        made = await provider.open(replace(spec, **{"network": "no-network", **changes}))
        opened.append(made)
        return made

    yield open_one
    for made in opened:
        await made.close()


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with loopback_server() as running:
        yield running


async def ask(sandbox: Sandbox, host: str, port: int | str) -> str:
    """Return the last line that a server answers to a request from inside; "nothing" = it is not reached."""
    done = await sandbox.exec(Command(("sh", "-c", ASK, "sh", host, str(port)), timeout_s=60))
    return done.stdout.decode().strip()


def doors_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bf-doors"]


async def test_sandbox_without_network_reaches_one_server_of_the_worker(
    open_sandbox: Open, server: LocalServer
) -> None:
    sandbox = await open_sandbox()

    async with listen_inside(sandbox, 8500, LoopbackTarget(server.port)) as address:
        said = await ask(sandbox, "127.0.0.1", 8500)
        beside = await ask(sandbox, "127.0.0.1", server.port)
        elsewhere = [await ask(sandbox, host, server.port) for host in ("172.17.0.1", "169.254.169.254")]
    after = await ask(sandbox, "127.0.0.1", 8500)

    assert address == "127.0.0.1:8500"
    assert said == "answer to /v1"
    assert (beside, elsewhere, after) == ("nothing", ["nothing"] * 2, "nothing")
    assert server.asked == ["/v1"]
    assert doors_threads() == []


async def test_no_other_sandbox_comes_through_a_door(open_sandbox: Open, server: LocalServer) -> None:
    """Not one without a network, and not one on the same network that knows its address."""
    owner = await open_sandbox(network="public", has_changing_network=True)
    others = [await open_sandbox(), await open_sandbox(network="public", has_changing_network=True)]

    async with listen_inside(owner, 0, LoopbackTarget(server.port)) as address:
        port = address.partition(":")[2]
        found = await owner.exec(Command(("sh", "-c", "hostname -i"), timeout_s=60))
        hosts = ["127.0.0.1", *found.stdout.decode().split()]
        said = [await ask(other, host, port) for other in others for host in hosts]
        own = await ask(owner, "127.0.0.1", port)

    assert own == "answer to /v1"
    assert set(said) == {"nothing"}
    assert server.asked == ["/v1"]


async def test_door_stays_where_the_network_changes(open_sandbox: Open, tmp_path: Path) -> None:
    sandbox = await open_sandbox(network="public", has_changing_network=True)
    path = tmp_path / "gateway.sock"

    with unix_server(path) as server:
        async with listen_inside(sandbox, 8500, UnixTarget(path)):
            said = []
            for policy in (NetworkPolicy("no-network"), NetworkPolicy("allowlist", allowed=("a.example",))):
                await switch_network(sandbox, policy)
                said.append(await ask(sandbox, "127.0.0.1", 8500))

    assert said == ["answer to /v1"] * 2
    assert server.asked == ["/v1"] * 2


async def test_door_is_closed_with_its_sandbox_and_cuts_who_is_in_it(
    open_sandbox: Open, server: LocalServer
) -> None:
    sandbox = await open_sandbox()
    first = await open_door(sandbox, 8500, LoopbackTarget(server.silent_port))
    second = await open_door(sandbox, 8501, LoopbackTarget(server.port))
    both = len(doors_threads())
    command = ("setsid", "bash", "-c", f"({HOLD}) >/tmp/said 2>&1 &", "bash", "127.0.0.1", "8500")
    await sandbox.exec(Command(command, timeout_s=60))
    await asyncio.to_thread(until, lambda: len(server.held) == 1)

    await sandbox.close()

    assert both == 1
    assert doors_threads() == []
    assert server.held[0].recv(1) == b""
    first.close_blocking()
    second.close_blocking()
    with pytest.raises(SandboxError) as caught:
        await open_door(sandbox, 8502, LoopbackTarget(server.port))
    assert caught.value.code == "sandbox.lost"


async def test_port_that_is_taken_is_told_and_any_other_is_found(
    open_sandbox: Open, server: LocalServer
) -> None:
    sandbox = await open_sandbox()

    async with listen_inside(sandbox, 8500, LoopbackTarget(server.port)):
        with pytest.raises(SandboxError, match="8500") as caught:
            await open_door(sandbox, 8500, LoopbackTarget(server.port))
        async with listen_inside(sandbox, 0, LoopbackTarget(server.port)) as address:
            said = await ask(sandbox, *address.split(":"))

    assert caught.value.code == "sandbox.exec_failed"
    assert said == "answer to /v1"


async def test_server_that_is_not_there_yet_is_found_when_it_is(open_sandbox: Open, tmp_path: Path) -> None:
    sandbox, path = await open_sandbox(), tmp_path / "late.sock"

    async with listen_inside(sandbox, 8500, UnixTarget(path)):
        before = await ask(sandbox, "127.0.0.1", 8500)
        with unix_server(path):
            after = await ask(sandbox, "127.0.0.1", 8500)

    assert before in {"", "nothing"}
    assert after == "answer to /v1"


async def test_sandbox_with_the_hosts_network_needs_no_door(tmp_path: Path, server: LocalServer) -> None:
    provider = LocalSandboxes(LocalOptions(tmp_path / "state"))
    name = f"doors-{secrets.token_hex(6)}"
    sandbox = await provider.open(SandboxSpec(name, {}, None, None, "", network="public"))
    try:
        async with listen_inside(sandbox, 8500, LoopbackTarget(server.port)) as address:
            said = await ask(sandbox, *address.split(":"))
        with pytest.raises(SandboxError, match="shares the network of its host") as caught:
            await open_door(sandbox, 8500, UnixTarget(tmp_path / "gateway.sock"))
    finally:
        await sandbox.close()
        await provider.close()

    assert address == f"127.0.0.1:{server.port}"
    assert said == "answer to /v1"
    assert caught.value.code == "task.unsupported"
    assert doors_threads() == []


async def test_kind_of_sandbox_without_doors_is_told(server: LocalServer) -> None:
    sandbox = await NullSandboxes(NullOptions()).open(SandboxSpec("doors-null", {}, None, None, ""))

    with pytest.raises(SandboxError, match="cannot listen inside this kind") as caught:
        await open_door(sandbox, 8500, LoopbackTarget(server.port))

    assert caught.value.code == "task.unsupported"


async def test_door_of_a_local_sandbox_needs_no_right_over_its_network(
    tmp_path: Path, server: LocalServer
) -> None:
    """What opens it is inside already: also a worker without root's rights has one."""
    provider = LocalSandboxes(LocalOptions(tmp_path / "state", mode="rootless"))
    name = f"doors-{secrets.token_hex(6)}"
    sandbox = await provider.open(SandboxSpec(name, {}, None, None, "", network="no-network"))
    try:
        async with listen_inside(sandbox, 0, LoopbackTarget(server.port)) as address:
            said = await ask(sandbox, *address.split(":"))
            beside = await ask(sandbox, "127.0.0.1", server.port)
    finally:
        await sandbox.close()
        await provider.close()

    assert (said, beside) == ("answer to /v1", "nothing")
