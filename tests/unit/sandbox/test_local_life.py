"""What a local sandbox hides, limits and survives, and what is left when a worker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Completed, SandboxSpec, Upload
from benchflow_workers.sandbox.local import LocalOptions, LocalSandbox, LocalSandboxes
from benchflow_workers.sandbox.local.modes import try_mode
from benchflow_workers.sandbox.local.places import start_time

REPOSITORY = Path(__file__).parents[3]
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local") / "state"


@pytest.fixture(params=[pytest.param("namespaces", marks=pytest.mark.root), "rootless"])
async def provider(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[LocalSandboxes]:
    if problem := try_mode(request.param, state_dir).problem:
        pytest.skip(problem)
    provider = LocalSandboxes(LocalOptions(state_dir, mode=request.param))
    yield provider
    await provider.close()


@pytest.fixture
async def sandbox(provider: LocalSandboxes) -> AsyncIterator[LocalSandbox]:
    sandbox = await provider.open(make_spec())
    yield sandbox
    await sandbox.close()


def make_spec() -> SandboxSpec:
    name = f"life-{uuid.uuid4().hex[:8]}"
    return SandboxSpec(name=name, labels={"t": name}, image=None, build_context=None, build_digest="")


async def sh(sandbox: LocalSandbox, script: str, user: str | int = "root") -> Completed:
    return await sandbox.exec(Command(("sh", "-c", script), timeout_s=30, user=user))


async def output(sandbox: LocalSandbox, script: str, user: str | int = "root") -> str:
    done = await sh(sandbox, script, user)
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


async def test_only_system_folders_of_the_host_are_there(sandbox: LocalSandbox) -> None:
    seen = set((await output(sandbox, "ls -A / /root /home /srv /run /tmp /mnt | sed '/^$/d'")).splitlines())

    known = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "opt", "nix", "gnu"}
    known |= {"root", "home", "srv", "mnt", "media", "run", "tmp", "dev", "proc", "sys"}
    assert {name for name in seen if not name.endswith(":")} <= known
    assert await output(sandbox, f"ls -d {REPOSITORY} 2>/dev/null; true") == ""


async def test_the_docker_socket_and_the_state_folder_are_hidden(
    sandbox: LocalSandbox, state_dir: Path
) -> None:
    script = f"ls -d /var/run/docker.sock /run/docker.sock {state_dir} 2>/dev/null; ls -A /sys /var/lib/docker 2>/dev/null"

    assert (await sh(sandbox, script)).stdout.split() in ([b"/sys:"], [b"/sys:", b"/var/lib/docker:"])


async def test_nothing_of_the_workers_variables_is_seen(sandbox: LocalSandbox) -> None:
    os.environ["BF_TEST_OF_THE_WORKER"] = "secret"
    try:
        names = await output(
            sandbox, "env | cut -d= -f1; tr '\\0' '\\n' </proc/1/environ 2>/dev/null | cut -d= -f1"
        )
    finally:
        del os.environ["BF_TEST_OF_THE_WORKER"]

    assert set(names.split()) == {"PATH", "HOME", "LANG", "BF_EXEC_ID", "PWD"}


FORBIDDEN = (
    "mount -t tmpfs none /mnt",
    "umount /proc/sys",
    "mknod /tmp/disk b 8 0",
    "echo x >/proc/sys/kernel/core_pattern",
    "echo b >/proc/sysrq-trigger",
    "kill -KILL 1; kill -INT 1; kill -STOP 1; exit 1",
    "readlink /proc/1/fd/0",
    "hostname other",
)


async def test_root_of_a_sandbox_has_no_power_over_the_host(sandbox: LocalSandbox) -> None:
    allowed = [script for script in FORBIDDEN if (await sh(sandbox, script)).exit_code == 0]

    assert allowed == []
    assert await output(sandbox, "echo alive") == "alive"


async def test_host_name_and_hosts_are_the_sandboxes_own(provider: LocalSandboxes) -> None:
    spec = make_spec()
    sandbox = await provider.open(spec)
    try:
        seen = await output(
            sandbox, "hostname; cat /etc/hostname; grep -c localhost /etc/hosts; echo x >>/etc/hosts"
        )
    finally:
        await sandbox.close()

    assert seen.split() == [spec.name, spec.name, "2"]


@pytest.mark.root
async def test_an_agent_has_no_capability_and_cannot_gain_one(state_dir: Path) -> None:
    provider = LocalSandboxes(LocalOptions(state_dir, mode="namespaces"))
    sandbox = await provider.open(make_spec())
    try:
        status = await output(
            sandbox, "grep -E '^(Cap|NoNewPrivs|Groups)' /proc/self/status; echo $HOME", user=1234
        )
        added = await output(sandbox, "useradd -m -u 1777 -G audio zoe && id zoe")
        theirs = await output(sandbox, "id; cd; pwd; touch mine", user="zoe")
        denied = await sh(sandbox, "touch /usr/bf-x; cat /etc/shadow; touch /root/x", user="zoe")
    finally:
        await sandbox.close()
        await provider.close()

    zero = "0000000000000000"
    values = dict(line.split(":") for line in status.splitlines()[:-1])
    assert {name: value.strip() for name, value in values.items()} == {
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), zero),
        "NoNewPrivs": "1",
        "Groups": "1234",
    }
    assert status.splitlines()[-1] == "/"
    assert theirs.splitlines() == [added, "/home/zoe"]
    assert denied.stderr.count(b"denied") == 3
    assert "zoe" not in os.listdir("/home")


async def test_a_fork_storm_is_killed_whole(provider: LocalSandboxes) -> None:
    """Processes that only fork and exit, faster than they are listed."""
    sandbox = await provider.open(replace(make_spec(), pids=60))
    storm = "f() { f & f; }; trap '' TERM; (setsid sh -c 'while :; do setsid sh -c : & done' &) ; sleep 60"
    try:
        done = await sandbox.exec(Command(("sh", "-c", storm), timeout_s=1.0))
        left = await output(sandbox, "ls -d /proc/[0-9]* | wc -l")
    finally:
        await sandbox.close()

    assert (done.timed_out, done.exit_code) == (True, 137)
    assert int(left) <= 5  # the first process, this shell and what it lists with


async def test_a_command_that_hides_its_mark_is_found_by_its_parent(sandbox: LocalSandbox) -> None:
    done = await sandbox.exec(Command(("sh", "-c", "env -i setsid sleep 4711 & wait"), timeout_s=1.0))

    left = await output(sandbox, "grep -lc 471''1 /proc/[0-9]*/cmdline 2>/dev/null; true")
    assert done.timed_out
    assert left == ""


async def test_a_private_network_is_reached_through_a_listener(provider: LocalSandboxes) -> None:
    """How a sandbox without network reaches the worker's gateway and nothing else."""
    sandbox = await provider.open(replace(make_spec(), network="no-network"))
    listener = await sandbox.listen(8123)
    served = threading.Thread(target=_answer_once, args=(listener,))
    served.start()
    script = "import socket; s = socket.create_connection(('127.0.0.1', 8123)); print(s.recv(9).decode())"
    try:
        done = await sandbox.exec(Command((_python(), "-c", script), timeout_s=20))
        with pytest.raises(SandboxError, match="Port 8123 cannot be opened") as caught:
            await sandbox.listen(8123)
    finally:
        await sandbox.close()
        listener.close()
    served.join(DEADLINE_S)

    assert (done.stdout, done.stderr) == (b"hello\n", b"")
    assert caught.value.code == "sandbox.exec_failed"


def _answer_once(listener: socket.socket) -> None:
    listener.settimeout(DEADLINE_S)
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"hello")


def _python() -> str:
    return "/usr/bin/python3" if Path("/usr/bin/python3").exists() else "python3"


async def test_a_sandbox_opened_by_a_thread_outlives_it(provider: LocalSandboxes) -> None:
    """Linux can tie a child to the thread that made it; trials run in threads that end."""
    sandbox = await asyncio.to_thread(asyncio.run, provider.open(make_spec()))
    try:
        assert await output(sandbox, "echo alive") == "alive"
    finally:
        await sandbox.close()


async def test_a_dead_nursery_is_replaced_and_its_sandboxes_live_on(provider: LocalSandboxes) -> None:
    first = await provider.open(make_spec())
    nursery = _parent(_parent(first.pid))
    os.kill(nursery, signal.SIGKILL)
    await _gone(nursery)

    second = await provider.open(make_spec())
    alive = [await output(sandbox, "echo alive") for sandbox in (first, second)]
    await first.close()
    await second.close()

    assert alive == ["alive", "alive"]


async def test_a_killed_worker_takes_its_sandboxes_processes_along(state_dir: Path) -> None:
    """Only the folder is left, found by its labels from another process and removed there."""
    if problem := try_mode("rootless", state_dir).problem:
        pytest.skip(problem)
    init = _first_process_of_a_killed_worker(state_dir)
    await _gone(init)

    provider = LocalSandboxes(LocalOptions(state_dir))
    refs = await provider.list({"t": "orphan"})
    await provider.remove(refs[0])

    assert [ref.labels for ref in refs] == [{"t": "orphan"}]
    assert await provider.list({"t": "orphan"}) == []
    assert list((state_dir / "sandboxes").glob("orphan*")) == []
    assert _traces(state_dir) == []


def _first_process_of_a_killed_worker(state_dir: Path) -> int:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(state_dir)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert worker.stdout is not None
    with worker.stdout:
        init = int(worker.stdout.readline())
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    return init


def _traces(state_dir: Path) -> list[str]:
    """Return mounts below the state folder and control groups of the orphan."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(state_dir) in line]
    return mounts + [str(path) for path in Path("/sys/fs/cgroup").glob("**/benchflow-orphan*")]


WORKER = """
import asyncio, sys
from pathlib import Path
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes

async def main():
    provider = LocalSandboxes(LocalOptions(Path(sys.argv[1])))
    spec = SandboxSpec(name="orphan", labels={"t": "orphan"}, image=None, build_context=None, build_digest="")
    sandbox = await provider.open(spec)
    await sandbox.exec(Command(("sh", "-c", "setsid sleep 4712 >/dev/null 2>&1 &"), timeout_s=20))
    print(sandbox.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_sandbox_of_a_live_worker_can_be_removed_by_another(
    provider: LocalSandboxes, state_dir: Path
) -> None:
    spec = make_spec()
    sandbox = await provider.open(spec)
    other = LocalSandboxes(LocalOptions(state_dir))

    await other.remove((await other.list(spec.labels))[0])

    assert start_time(sandbox.pid) is None
    with pytest.raises(SandboxError) as caught:
        await output(sandbox, "true")
    assert caught.value.code == "sandbox.lost"
    await sandbox.close()


async def test_a_tree_too_deep_for_python_is_deleted(provider: LocalSandboxes, state_dir: Path) -> None:
    sandbox = await provider.open(make_spec())
    deep = "mkdir -p /deep; cd /deep; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; i=$((i+1)); done; chmod 0 /deep"

    await output(sandbox, deep)
    await sandbox.close()

    assert [name for name in os.listdir(state_dir / "sandboxes") if sandbox.id in name] == []


async def test_uploads_follow_links_only_inside_the_sandbox(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """A link to a folder of the host's name leads to that folder of the sandbox."""
    target = tmp_path / "host"
    target.mkdir()
    await output(sandbox, f"mkdir -p {target}; ln -s {target} /trap; ln -s /proc/1/root{tmp_path} /climb")

    await sandbox.put([Upload("/trap/file", b"x")])
    with pytest.raises(SandboxError) as caught:
        await sandbox.put([Upload("/climb/host/file", b"x"), Upload("/proc/self/nope", b"x")])

    assert await output(sandbox, f"cat {target}/file") == "x"
    assert list(target.iterdir()) == []
    assert caught.value.code == "sandbox.transfer_failed"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def _gone(pid: int) -> None:
    """Poll until a process that is not our child has ended."""
    deadline = time.monotonic() + DEADLINE_S
    while start_time(pid) is not None:
        assert time.monotonic() < deadline, f"process {pid} did not end in {DEADLINE_S} s"
        await asyncio.sleep(0.02)
