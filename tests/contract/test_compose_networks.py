"""Services of a task while its network changes: they reach one another in every phase, and outside what each may."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import Compose
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxSpec
from benchflow_workers.sandbox.conformance_network import expect_unreached
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.docker_outside import name_servers
from benchflow_workers.sandbox.listener import LoopbackTarget, listen_inside
from benchflow_workers.sandbox.network import NetworkPolicy, switch_network
from benchflow_workers.sandbox.network_log import take_refusals
from benchflow_workers.sandbox.services import service_sandbox
from benchflow_workers.sandbox.services_spec import ServicesSpec
from tests.local_server import loopback_server
from tests.waiting import until
from tests.web_server import WebServer, web_server

pytestmark = [pytest.mark.docker, pytest.mark.root]

IMAGE = "debian:bookworm-slim"
IDLE = {"image": IMAGE, "command": ["sleep", "infinity"]}
SERVE = (
    "perl -MIO::Socket::INET -e '$s=IO::Socket::INET->new(LocalPort=>7000,Listen=>5,ReuseAddr=>1) or die;"
    'while($c=$s->accept){print $c "from db\\n";close $c}\''
)
ALWAYS: Mapping[str, Any] = {
    "main": {"networks": ["default", "back"]},
    "db": {"image": IMAGE, "command": ["sh", "-c", SERVE]},
}
SOMETIMES: Mapping[str, Any] = {
    "done": {"image": IMAGE, "command": ["true"]},
    "again": {
        "image": IMAGE,
        "command": [
            "sh",
            "-c",
            "echo started >> /starts; until [ -e /end ]; do sleep 0.1; done; rm /end; exit 1",
        ],
        "restart": "always",
    },
    "hidden": IDLE | {"networks": ["back"]},
}
ASK = (
    'timeout 50 bash -c \'exec 3<>"/dev/tcp/$0/80" && printf "GET / HTTP/1.1\\r\\nHost: $0\\r\\n\\r\\n" >&3 '
    '&& head -n 1 <&3 | cut -d" " -f2\' "$1" 2>/dev/null || echo none'
)
DATABASE = "timeout 50 bash -c 'cat </dev/tcp/db/7000' 2>/dev/null || echo none"
LISTED = NetworkPolicy("allowlist", allowed=("web.example",))


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
async def provider(web: WebServer, tmp_path: Path) -> AsyncIterator[DockerSandboxes]:
    made = DockerSandboxes(DockerOptions(tmp_path / "state", egress=web.egress))
    yield made
    await made.close()


def wanted(folder: Path, *services: str, **changes: Any) -> SandboxSpec:
    name = f"nets-{secrets.token_hex(5)}"
    chosen = {**ALWAYS, **{service: SOMETIMES[service] for service in services}}
    networks = {"default": {}, "back": {"internal": True}}
    compose = Compose.model_validate({"services": chosen, "networks": networks})
    asked = ServicesSpec(compose, folder, {service: {} for service in compose.services}, "")
    labels = {"bf.fleet": name, "bf.trial": name}
    return SandboxSpec(name, labels, IMAGE, None, "", services=asked, has_changing_network=True, **changes)


async def said(sandbox: Sandbox, script: str, *arguments: str) -> str:
    done = await sandbox.exec(Command(("sh", "-c", script, "sh", *arguments), timeout_s=60))
    return done.stdout.decode().strip()


async def sees(sandbox: Sandbox) -> tuple[str, str, str]:
    """Return what a listed name, another one, and the database answer."""
    names = [await said(sandbox, ASK, name) for name in ("web.example", "other.example")]
    return names[0], names[1], await said(sandbox, DATABASE)


async def test_list_holds_for_every_service_and_none_loses_the_others(
    provider: DockerSandboxes, web: WebServer, tmp_path: Path
) -> None:
    spec = wanted(tmp_path, "done", "hidden")
    sandbox = await provider.open(spec)
    try:
        before = await said(sandbox, "grep -c 00000000 /proc/net/route")
        await switch_network(sandbox, LISTED)
        database, hidden = service_sandbox(sandbox, "db"), service_sandbox(sandbox, "hidden")
        seen = [await sees(box) for box in (sandbox, database, hidden)]
        for box in (sandbox, database):
            await expect_unreached(box)
        refused = {(line["host"], line.get("service")) for line in take_refusals(sandbox)}
        with loopback_server() as server:
            async with listen_inside(sandbox, 8500, LoopbackTarget(server.port)):
                own = await said(sandbox, "cat </dev/tcp/127.0.0.1/8500 & wait; echo reached")
                through = await said(
                    database, "timeout 20 bash -c ': >/dev/tcp/main/8500' 2>/dev/null || echo none"
                )
    finally:
        await sandbox.close()

    assert int(before) >= 1
    assert seen == [
        ("200", "none", "from db"),
        ("200", "none", "from db"),
        ("none", "none", "none"),
    ]
    assert {("other.example", None), ("other.example", "db")} <= refused
    assert (own, through) == ("reached", "none")
    assert await provider.list(spec.labels) == []


async def test_service_that_starts_again_has_no_way_out(provider: DockerSandboxes, tmp_path: Path) -> None:
    sandbox = await provider.open(wanted(tmp_path, "again"))
    try:
        again = service_sandbox(sandbox, "again")
        await switch_network(sandbox, LISTED)
        with socket.create_server(("0.0.0.0", 0)) as listener:
            listener.settimeout(0)
            port = str(listener.getsockname()[1])
            before = await said(again, "cat /starts; touch /end")
            await asyncio.to_thread(until, lambda: asyncio.run(_starts(again)) == 2)
            reached = await said(
                again,
                "for host in 172.17.0.1 1.1.1.1; do timeout 5 bash -c ': >/dev/tcp/$0/$1' $host $1 2>/dev/null && echo $host; "
                "done; true",
                port,
            )
            with pytest.raises(BlockingIOError):
                listener.accept()
        await switch_network(sandbox, NetworkPolicy("denylist", blocked=("other.example",)))
        listed = await said(again, ASK, "web.example")
    finally:
        await sandbox.close()

    assert (before, reached, listed) == ("started", "", "200")


async def _starts(sandbox: Sandbox) -> int:
    """Return how often a service was started; 0 while it is not running."""
    try:
        return len((await said(sandbox, "cat /starts")).splitlines())
    except SandboxError:
        return 0


async def test_network_is_cut_and_given_back_to_every_service(
    provider: DockerSandboxes, tmp_path: Path
) -> None:
    spec = wanted(tmp_path, network="no-network")
    sandbox = await provider.open(spec)
    try:
        routes = "cut -f 2 /proc/net/route | grep -c 00000000; true"
        boxes = (sandbox, service_sandbox(sandbox, "db"))
        await switch_network(sandbox, NetworkPolicy("no-network"))
        start = [await said(box, routes) for box in boxes]
        await switch_network(sandbox, NetworkPolicy("public"))
        opened = [await said(box, routes) for box in boxes]
        await switch_network(sandbox, NetworkPolicy("no-network"))
        cut = [(await said(box, routes), await said(box, DATABASE)) for box in boxes]
        name = await said(sandbox, ASK, "web.example")
        await expect_unreached(boxes[1])
    finally:
        await sandbox.close()

    assert (start, opened) == (["0", "0"], ["1", "1"])
    assert (cut, name) == ([("0", "from db")] * 2, "none")
    assert await provider.list(spec.labels) == []


async def test_root_of_a_service_reaches_no_host_over_its_bridge(
    provider: DockerSandboxes, tmp_path: Path
) -> None:
    """The bridges of the services have no address of the host, of any version, and packets cannot be made by hand."""
    sandbox = await provider.open(wanted(tmp_path))
    try:
        await switch_network(sandbox, LISTED)
        tried = await said(
            service_sandbox(sandbox, "db"),
            "grep -v ' lo$' /proc/net/if_inet6\n"
            "perl -MSocket -e 'socket(my $s, AF_INET, SOCK_RAW, 1) and print q(raw); socket($s, 17, SOCK_RAW, 8) and "
            "print q(packet)'\n"
            "timeout 5 bash -c 'exec 3<>/dev/tcp/172.17.0.1/22' 2>/dev/null && echo host\ntrue",
        )
    finally:
        await sandbox.close()

    assert tried == ""


async def test_services_that_were_not_started_to_change_their_network_keep_it(
    provider: DockerSandboxes, tmp_path: Path
) -> None:
    spec = wanted(tmp_path, network="no-network")
    sandbox = await provider.open(replace(spec, has_changing_network=False))
    try:
        with pytest.raises(SandboxError, match="keep the network they were started with") as caught:
            await switch_network(sandbox, LISTED)
    finally:
        await sandbox.close()

    assert caught.value.code == "sandbox.network_not_enforced"


def test_names_are_asked_of_nobody_on_the_hosts_own_loopback(tmp_path: Path) -> None:
    stub, real = tmp_path / "resolv.conf", tmp_path / "real.conf"
    stub.write_text("# local\nnameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver x\n")
    real.write_text("nameserver 10.0.0.2\nnameserver 127.0.0.1\nnameserver 2001:db8::53\n")

    assert name_servers((tmp_path / "none", stub, real)) == ("10.0.0.2", "2001:db8::53")
    assert name_servers((stub,)) == ("8.8.8.8",)
