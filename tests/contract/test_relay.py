"""A relay leads from a sandbox's loopback to one server of the worker, where the worker cannot listen inside."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxSpec
from benchflow_workers.sandbox.conformance_bench import add_user, count_processes, output
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.listener import LoopbackTarget
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes
from benchflow_workers.sandbox.null import NullSandboxes
from benchflow_workers.sandbox.relay import RESTARTS, relayed
from tests.local_server import LocalServer, loopback_server

ASK = (
    'timeout 50 bash -c \'exec 3<>"/dev/tcp/${0%:*}/${0#*:}" && printf "GET /v1 HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n" >&3 '
    '&& tail -n 1 <&3\' "$1" 2>/dev/null || echo nothing'
)
EXCHANGE = r"""
use strict; use Socket;
my ($host, $port, $size, $many) = (split(/:/, $ARGV[0]), @ARGV[1, 2]);
my $data = join '', map { pack 'N', ($_ * 2654435761) % 4294967296 } 1 .. $size / 4;
my @children;
for (1 .. $many) {
    my $pid = fork;
    push @children, $pid and next if $pid;
    socket(my $sock, PF_INET, SOCK_STREAM, 0); connect($sock, sockaddr_in($port, inet_aton($host))) or exit 9;
    if (!fork) { select $sock; $| = 1; print $data; shutdown $sock, 1; exit 0 }
    local $/; my $back = <$sock>; wait;
    exit($back eq $data ? 0 : 8);
}
my $bad = 0;
for (@children) { waitpid $_, 0; $bad++ if $? }
print "$bad bad";
"""
"""Sends bytes on many connections while it reads what comes back; says how many had something else back."""

RELAY = "CONNECTIONS"
"""Stands in the command line of either program."""

KINDS = (
    pytest.param("docker", id="perl-on-docker", marks=pytest.mark.docker),
    pytest.param("local", id="python-on-local", marks=pytest.mark.root),
)


@asynccontextmanager
async def opened(
    kind: str, state: Path, image: str | None, **changes: object
) -> AsyncGenerator[Sandbox, None]:
    """Open a sandbox without a network. The image has Perl only; the host's root has Python too."""
    provider = (
        DockerSandboxes(DockerOptions(state)) if kind == "docker" else LocalSandboxes(LocalOptions(state))
    )
    name = f"relay-{secrets.token_hex(6)}"
    spec = SandboxSpec(name, {"bf.trial": name}, image, None, "", network="no-network")
    sandbox = await provider.open(replace(spec, **changes))
    try:
        yield sandbox
    finally:
        await sandbox.close()
        await provider.close()


@pytest.fixture(params=KINDS)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    image = request.getfixturevalue("docker_image") if request.param == "docker" else None
    async with opened(request.param, tmp_path / "state", image) as made:
        yield made


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with loopback_server() as running:
        yield running


@asynccontextmanager
async def echo_server() -> AsyncGenerator[int, None]:
    """Send back what comes, on a port of the loopback."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as running:
        yield running.sockets[0].getsockname()[1]


async def ask(sandbox: Sandbox, address: str) -> str:
    """Return the last line that a server answers to a request from inside; "nothing" = it is not reached."""
    done = await sandbox.exec(Command(("sh", "-c", ASK, "sh", address), timeout_s=60))
    return done.stdout.decode().strip()


async def kill_relay(sandbox: Sandbox) -> None:
    script = f"for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q '{RELAY[:1]}'{RELAY[1:]} && kill -9 ${{p#/proc/}}; done; true"
    await output(sandbox, script)


async def answer_of(sandbox: Sandbox, address: str) -> str:
    """Ask until somebody answers, while a relay starts again."""
    async with asyncio.timeout(60):
        while (said := await ask(sandbox, address)) in {"", "nothing"}:
            pass
    return said


async def test_sandbox_without_network_reaches_one_server_of_the_worker(
    sandbox: Sandbox, server: LocalServer
) -> None:
    async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
        said = [await ask(sandbox, relay.address) for _ in range(3)]
        beside = await ask(sandbox, f"127.0.0.1:{server.port}")
        failure = relay.failure
    after = await ask(sandbox, relay.address)
    left = await count_processes(sandbox, RELAY)

    assert said == ["answer to /v1"] * 3
    assert (beside, failure, after, left) == ("nothing", None, "nothing", 0)


async def test_large_streams_of_any_bytes_pass_both_ways_at_once(sandbox: Sandbox) -> None:
    async with echo_server() as port, relayed(sandbox, LoopbackTarget(port)) as relay:
        argv = ("perl", "-e", EXCHANGE, relay.address, str(3 << 20), "12")
        done = await sandbox.exec(Command(argv, timeout_s=120))

    assert (done.stdout, done.stderr, done.exit_code) == (b"0 bad", b"", 0)


async def test_connection_that_is_not_read_holds_up_no_other(sandbox: Sandbox, server: LocalServer) -> None:
    """Windows are full in both directions for it: what it sends, nobody takes, and it takes nothing."""
    async with relayed(sandbox, LoopbackTarget(server.silent_port)) as silent:
        flood = 'exec 3<>"/dev/tcp/${0%:*}/${0#*:}"; echo >/tmp/open; cat /dev/zero >&3'
        command = Command(
            ("bash", "-c", f"({flood}) & until [ -e /tmp/open ]; do :; done", silent.address), timeout_s=60
        )
        await sandbox.exec(command)
        async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
            said = await ask(sandbox, relay.address)

    assert said == "answer to /v1"


async def test_relay_that_was_killed_is_back_on_its_port(sandbox: Sandbox, server: LocalServer) -> None:
    async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
        await kill_relay(sandbox)
        said = await answer_of(sandbox, relay.address)
        failure = relay.failure

    assert (said, failure) == ("answer to /v1", None)


async def test_relay_that_is_killed_again_and_again_is_told(sandbox: Sandbox, server: LocalServer) -> None:
    async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
        async with asyncio.timeout(120):
            while relay.failure is None:
                await kill_relay(sandbox)

    assert relay.failure.code == "sandbox.exec_failed"
    assert f"ended {RESTARTS + 1} times" in relay.failure.message


async def test_unprivileged_user_runs_one_too_and_cannot_end_roots(
    sandbox: Sandbox, server: LocalServer
) -> None:
    user = await add_user(sandbox, 4321)

    async with relayed(sandbox, LoopbackTarget(server.port), user=user) as own:
        said = await ask(sandbox, own.address)
    async with relayed(sandbox, LoopbackTarget(server.port)) as roots:
        await sandbox.exec(Command(("sh", "-c", "kill -9 -1"), timeout_s=60, user=user))
        after = await ask(sandbox, roots.address)

    assert (said, after) == ("answer to /v1", "answer to /v1")


async def test_server_that_is_not_there_refuses_each_connection(sandbox: Sandbox) -> None:
    async with echo_server() as port:
        pass
    async with relayed(sandbox, LoopbackTarget(port)) as relay:
        said = [await ask(sandbox, relay.address) for _ in range(2)]
        failure = relay.failure

    assert (said, failure) == (["", ""], None)


async def test_perl_takes_over_where_python_is_broken(tmp_path: Path, server: LocalServer) -> None:
    async with opened("local", tmp_path / "state", None) as sandbox:
        await output(
            sandbox, "for p in /usr/local/bin/python3 /usr/bin/python3; do ln -sf /bin/false $p; done"
        )
        async with relayed(sandbox, LoopbackTarget(server.port)) as relay:
            said = await ask(sandbox, relay.address)
            programs = await output(sandbox, "cat /proc/[0-9]*/comm")

    assert said == "answer to /v1"
    assert "perl" in programs.split()


@pytest.mark.docker
async def test_image_with_neither_python_nor_perl_is_told(docker_image: str, tmp_path: Path) -> None:
    async with opened("docker", tmp_path, docker_image) as sandbox:
        for missing in ("/usr/bin/perl", "/bin/sh"):
            await sandbox.exec(Command(("rm", missing), timeout_s=60))
            with pytest.raises(SandboxError, match="neither python3 nor perl") as caught:
                async with relayed(sandbox, LoopbackTarget(1)):
                    pass
            assert caught.value.code == "task.unsupported"


async def test_sandbox_that_runs_nothing_is_told() -> None:
    sandbox = await NullSandboxes().open(SandboxSpec("relay-null", {}, None, None, ""))

    with pytest.raises(SandboxError, match="ended with exit code 0") as caught:
        async with relayed(sandbox, LoopbackTarget(1)):
            pass

    assert caught.value.code == "sandbox.exec_failed"
