"""Ways out of a sandbox without network that are neither an address nor a name."""

from __future__ import annotations

import secrets
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import Command, Sandbox, SandboxSpec
from benchflow_workers.sandbox.conformance_bench import ConformanceError
from benchflow_workers.sandbox.conformance_network import expect_unreached
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes

ATTEMPTS = r"""
use Socket;
sub tried { my ($what, $ok) = @_; print "$what\n" if $ok }
my ($abstract, $file, $peer) = @ARGV;
for my $path ("\0$abstract", $file, "/var/run/docker.sock", "/run/docker.sock") {
  socket(my $s, AF_UNIX, SOCK_STREAM, 0) or next;
  tried("unix $path", connect($s, pack_sockaddr_un($path)));
}
if (socket(my $raw, AF_INET, SOCK_RAW, 1)) {
  tried("raw $peer", send($raw, "\x08\x00\xf7\xff\x00\x00\x00\x00", 0, pack_sockaddr_in(0, inet_aton($peer))));
}
print "done\n";
"""
"""Written in Perl, which the smallest Debian image has and Python is not in."""


@pytest.fixture(
    params=[pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root)]
)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    is_docker = request.param == "docker"
    provider = (
        DockerSandboxes(DockerOptions(tmp_path / "state"))
        if is_docker
        else LocalSandboxes(LocalOptions(tmp_path / "state"))
    )
    name = f"leaks-{uuid.uuid4().hex[:8]}"
    image = request.getfixturevalue("docker_image") if is_docker else None
    spec = SandboxSpec(name, {"bf.test": name}, image, None, "", network="no-network")
    made = await provider.open(spec)
    yield made
    await made.close()
    await provider.close()


async def test_no_socket_of_the_host_is_reached_without_an_address(sandbox: Sandbox, tmp_path: Path) -> None:
    """Sockets by a name of their own, those of files, and raw packets of root."""
    name, file = f"bf-{secrets.token_hex(6)}", tmp_path / "host.sock"
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(file))
        named.listen()
        argv = ("perl", "-e", ATTEMPTS, name, str(file), "203.0.113.7")

        done = await sandbox.exec(Command(argv, timeout_s=60))

    assert (done.stdout, done.exit_code) == (b"done\n", 0), done.stderr


@pytest.mark.docker
async def test_check_of_what_is_unreached_sees_a_host_that_is_reached(
    docker_image: str, tmp_path: Path
) -> None:
    """A check that tried the wrong thing would find nothing anywhere."""
    provider, name = DockerSandboxes(DockerOptions(tmp_path / "state")), f"leaks-{uuid.uuid4().hex[:8]}"
    made = await provider.open(SandboxSpec(name, {"bf.test": name}, docker_image, None, "", network="public"))
    try:
        with pytest.raises(ConformanceError, match="tcp 172"):
            await expect_unreached(made)
    finally:
        await made.close()
