"""Services of a task on a real Docker engine: they run beside the agent, and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import Compose
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.docker_compose_parts import is_pool_exhausted
from benchflow_workers.sandbox.services import service_sandbox, services_of
from benchflow_workers.sandbox.services_spec import ServicesSpec
from tests.killed_worker import check_that_the_reaper_removes_all
from tests.waiting import until

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "tests/assets/tasks"
IMAGE = "debian:bookworm-slim"
IDLE = {"image": IMAGE, "command": ["sleep", "infinity"]}


def wanted(folder: Path, fleet: str, services: Mapping[str, Any], **spec: Any) -> SandboxSpec:
    """Return a sandbox with services, and a volume `shared`."""
    compose = Compose.model_validate({"services": {"main": {}, **services}, "volumes": ["shared"]})
    labels = {"bf.fleet": fleet, "bf.job": "j", "bf.trial": "j.0", "bf.index": "0", "bf.fence": "1"}
    asked = ServicesSpec(compose, folder, {name: {} for name in compose.services}, "")
    return SandboxSpec(f"bf-{fleet}", labels, IMAGE, None, "", services=asked, **spec)


async def opened(folder: Path, fleet: str) -> None:
    """Open a sandbox with services, say so, and wait to be killed."""
    services = {"db": IDLE | {"volumes": ["shared:/s"]}, "main": {"volumes": ["shared:/s"]}}
    await DockerSandboxes(DockerOptions(folder)).open(wanted(folder, fleet, services))
    sys.stdout.write("opened\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def bench(arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    program = "import sys; from benchflow_client.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=home,
        env=kept | {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_oracle_solves_the_tasks_with_services_and_their_logs_are_kept(tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    for name in ("compose-side-car", "compose-volume"):
        (chosen / name).symlink_to(TASKS / name)

    ran = bench(
        ["run", str(chosen), "--agent", "oracle", "--sandbox", "docker", "--jobs-dir", "jobs"], tmp_path
    )

    assert ran.returncode == 0, ran.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert {item["task_name"]: item["rewards"] for item in results} == {
        "compose-side-car": {"reward": 1.0},
        "compose-volume": {"reward": 1.0},
    }, results
    logs = {path.name: path.read_text() for path in tmp_path.rglob("services/*.log")}
    assert logs == {"clock.log": "clock listens\n", "writer.log": "written\n", "reader.log": ""}
    job = results[0]["job"]
    assert asyncio.run(DockerSandboxes(DockerOptions(tmp_path)).list({"bf.job": job})) == []


def test_killed_worker_leaves_nothing_that_the_reaper_does_not_remove(tmp_path: Path) -> None:
    check_that_the_reaper_removes_all(__name__, tmp_path, f"killed-{os.getpid()}")


async def test_services_have_names_an_order_and_no_way_out_without_a_network(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path))
    late = IDLE | {"depends_on": {"main": {}}, "networks": {"default": {"aliases": ["other"]}, "back": {}}}
    services = {"late": late, "alone": IDLE | {"network_mode": "none"}}

    sandbox = await provider.open(wanted(tmp_path, f"names-{os.getpid()}", services, network="no-network"))
    try:
        seen = await sandbox.exec(
            Command(("sh", "-c", "getent hosts late other; getent hosts alone"), timeout_s=60)
        )
        host = await sandbox.exec(Command(("bash", "-c", "exec 3<> /dev/tcp/172.17.0.1/9"), timeout_s=60))
        inside = await service_sandbox(sandbox, "late").exec(
            Command(("getent", "hosts", "main"), timeout_s=60)
        )
        alone = await service_sandbox(sandbox, "alone").exec(
            Command(("sh", "-c", "grep -c : /proc/net/dev"), timeout_s=60)
        )
    finally:
        await sandbox.close()

    assert [line.split()[-1] for line in seen.stdout.decode().splitlines()] == ["late", "other"]
    assert b"No route to host" in host.stderr or b"unreachable" in host.stderr, host.stderr
    assert inside.exit_code == 0
    assert alone.stdout == b"1\n"
    assert set(services_of(sandbox)) == {"late", "alone"}
    assert await provider.list({"bf.fleet": f"names-{os.getpid()}"}) == []
    with pytest.raises(SandboxError, match=r"no service 'gone'; it has main, late, alone"):
        service_sandbox(sandbox, "gone")


@pytest.mark.parametrize(
    ("db", "reason"),
    [
        (
            {
                "command": "sh -c 'echo no disk >&2; exit 3'",
                "healthcheck": {"test": "exit 1", "interval": "1h"},
            },
            r"'db' .*ended with exit code 3(.|\n)*no disk",
        ),
        (
            {"healthcheck": {"test": "echo not yet; exit 1", "interval": "100ms", "retries": 2}},
            r"'db' .*is unhealthy; its last check said: not yet",
        ),
        ({}, r"'db' .*has no healthcheck"),
    ],
)
async def test_service_that_does_not_come_up_ends_the_start_with_its_words(
    tmp_path: Path, db: dict[str, Any], reason: str
) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path))
    services = {"db": IDLE | db, "main": {"depends_on": {"db": {"condition": "service_healthy"}}}}

    with pytest.raises(SandboxError, match=reason) as caught:
        await provider.open(wanted(tmp_path, f"sick-{os.getpid()}", services))

    assert caught.value.code == "sandbox.start_failed"
    assert await provider.list({"bf.fleet": f"sick-{os.getpid()}"}) == []


async def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path))
    waiting = {"healthcheck": {"test": "exit 1", "interval": "1h"}}
    services = {"db": IDLE | waiting, "main": {"depends_on": {"db": {"condition": "service_healthy"}}}}
    opening = asyncio.create_task(provider.open(wanted(tmp_path, f"cancelled-{os.getpid()}", services)))
    await asyncio.to_thread(
        until, lambda: len(asyncio.run(provider.list({"bf.fleet": f"cancelled-{os.getpid()}"}))) >= 2
    )

    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await provider.list({"bf.fleet": f"cancelled-{os.getpid()}"}) == []


@pytest.mark.parametrize(
    "message",
    [
        "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the network",
        "all predefined address pools have been fully subnetted",
        "cannot create network 1 (br-1): conflicts with network 2 (br-2): networks have overlapping IPv4",
    ],
)
def test_engine_without_free_networks_is_understood(message: str) -> None:
    assert is_pool_exhausted(message)
    assert not is_pool_exhausted("network with name a already exists")
