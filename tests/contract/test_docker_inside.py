"""Docker without the host's help: other addresses, and killing and counting from inside the container."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxSpec, Upload
from benchflow_workers.sandbox.conformance_bench import count_processes, output, sh, wait_for_processes
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.docker_processes import ContainerProcesses
from benchflow_workers.sandbox.docker_sandbox import DockerSandbox
from tests.engines import tcp_relay

pytestmark = pytest.mark.docker


def make_spec(image: str) -> SandboxSpec:
    name = f"inside-{secrets.token_hex(6)}"
    labels = {"bf.trial": name}
    return SandboxSpec(name, labels, image, None, "", network="no-network", memory_mb=64)


@pytest_asyncio.fixture
async def sandbox(docker_image: str, tmp_path: Path) -> AsyncGenerator[DockerSandbox, None]:
    """A sandbox whose control group is not seen, as with an engine on another machine."""
    sandbox = await DockerSandboxes(DockerOptions(state_dir=tmp_path)).open(make_spec(docker_image))
    sandbox._processes = ContainerProcesses(sandbox._http, sandbox.id, None)
    yield sandbox
    await sandbox.close()


async def test_engine_behind_tcp_runs_commands_with_input(docker_image: str, tmp_path: Path) -> None:
    async with tcp_relay() as url:
        sandbox = await DockerSandboxes(DockerOptions(tmp_path, base_url=url)).open(make_spec(docker_image))
        try:
            done = await sandbox.exec(Command(("wc", "-c"), timeout_s=60, stdin=b"x" * 1_000_000))
            await sandbox.put([Upload("/up", b"over tcp")])
            assert await sandbox.get("/up", tmp_path / "up")
        finally:
            await sandbox.close()

    assert done.stdout.strip() == b"1000000"
    assert (tmp_path / "up").read_bytes() == b"over tcp"


async def test_deadline_kills_the_tree_from_inside(sandbox: DockerSandbox) -> None:
    other = asyncio.create_task(sh(sandbox, "sleep 4; echo alive"))
    script = "sleep 97531 & setsid sleep 97531 & trap '' TERM; sleep 97531"

    done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=1))

    assert (done.timed_out, done.exit_code) == (True, 137)
    assert await count_processes(sandbox, "97531") == 0
    assert (await other).stdout == b"alive\n"


async def test_users_processes_are_killed_from_inside(sandbox: DockerSandbox) -> None:
    await output(sandbox, "echo 'agent:x:4747::::' >>/etc/passwd; sleep 97532 >/dev/null 2>&1 &")
    running = asyncio.create_task(sh(sandbox, "trap '' TERM; setsid sleep 97533 & wait", user=4747))
    await wait_for_processes(sandbox, "97533", 2)

    await sandbox.kill("agent")

    assert await count_processes(sandbox, "97533") == 0
    assert await count_processes(sandbox, "97532") == 1
    assert (await running).exit_code == 137
    await sandbox.kill("root")
    assert await count_processes(sandbox, "97532") == 0
    await sandbox.kill("nobody-knows-me")


async def test_out_of_memory_is_seen_from_inside(sandbox: DockerSandbox) -> None:
    done = await sandbox.exec(Command(("tail", "/dev/zero"), timeout_s=60))
    later = await sh(sandbox, "kill -KILL $$")

    assert (done.exit_code, done.oom_killed) == (137, True)
    assert (later.exit_code, later.oom_killed) == (137, False)


async def test_container_is_killed_where_its_processes_cannot_be(sandbox: DockerSandbox) -> None:
    """Without a shell in the image nothing can look for the processes."""
    await output(sandbox, "rm /bin/grep")

    with pytest.raises(
        SandboxError, match="its processes could not be killed, so the container was"
    ) as caught:
        await sandbox.exec(Command(("sh", "-c", "sleep 300"), timeout_s=1))

    assert caught.value.code == "sandbox.lost"
    with pytest.raises(SandboxError, match="it ended with exit code 137"):
        await sandbox.exec(Command(("true",), timeout_s=20))


async def test_kill_that_cannot_work_is_told(sandbox: DockerSandbox) -> None:
    await output(sandbox, "rm /bin/sh")

    with pytest.raises(SandboxError, match="could not be killed") as caught:
        await sandbox.kill(4747)

    assert caught.value.code == "sandbox.exec_failed"


async def test_tmpfs_without_tar_is_told(sandbox: DockerSandbox, tmp_path: Path) -> None:
    await output(sandbox, "echo x >/dev/shm/x; rm /bin/tar")

    for call in (sandbox.put([Upload("/dev/shm/y", b"y")]), sandbox.get("/dev/shm/x", tmp_path / "x")):
        with pytest.raises(SandboxError, match="`tar` inside the sandbox could not") as caught:
            await call
        assert caught.value.code == "sandbox.transfer_failed"


async def test_command_may_close_its_output_long_before_it_ends(sandbox: DockerSandbox) -> None:
    done = await sh(sandbox, "echo early; exec >&- 2>&-; sleep 1.5; exit 5")

    assert (done.stdout, done.exit_code) == (b"early\n", 5)


async def test_upload_the_engine_refuses_is_a_failed_transfer(sandbox: DockerSandbox) -> None:
    await output(sandbox, "echo >/file")

    with pytest.raises(SandboxError, match="refused to place files") as caught:
        await sandbox.put([Upload("/file/below", b"x")])

    assert caught.value.code == "sandbox.transfer_failed"


async def test_engine_that_goes_away_is_a_lost_sandbox(docker_image: str, tmp_path: Path) -> None:
    spec = make_spec(docker_image)
    async with tcp_relay() as url:
        sandbox = await DockerSandboxes(DockerOptions(tmp_path, base_url=url)).open(spec)

    with pytest.raises(SandboxError, match="No Docker daemon answers") as caught:
        await sandbox.exec(Command(("true",), timeout_s=20))

    assert caught.value.code == "sandbox.lost"
    provider = DockerSandboxes(DockerOptions(tmp_path))
    for ref in await provider.list(spec.labels):
        await provider.remove(ref)
    assert await provider.list(spec.labels) == []
