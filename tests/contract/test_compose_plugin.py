"""Services whose keys only the compose plugin reads: what it makes is the trial's as everything else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import Compose
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.services import service_sandbox
from benchflow_workers.sandbox.services_spec import ServicesSpec
from tests.contract.test_compose_on_docker import IDLE, IMAGE, TASKS, bench
from tests.killed_worker import check_that_the_reaper_removes_all

pytestmark = pytest.mark.docker

NEEDED = "environment/docker-compose.yaml, line 4: services.db.sysctls: needs the docker compose plugin"
BY_PLUGIN = {"db": {"sysctls": {"net.ipv4.ip_default_ttl": 77}, "domainname": "rack.$one"}}


def wanted(folder: Path, fleet: str, by_plugin: Mapping[str, Mapping[str, Any]] = BY_PLUGIN) -> SandboxSpec:
    services = {"db": IDLE | {"volumes": ["shared:/s"]}, "main": {"volumes": ["shared:/s"]}}
    compose = Compose.model_validate({"services": services, "volumes": ["shared"]})
    labels = {"bf.fleet": fleet, "bf.job": "j", "bf.trial": "j.0", "bf.index": "0", "bf.fence": "1"}
    env = {"main": {}, "db": {"PRICE": "5$MONEY"}}
    asked = ServicesSpec(compose, folder, env, "", by_plugin, (NEEDED,))
    return SandboxSpec(f"bf-{fleet}", labels, IMAGE, None, "", services=asked)


async def opened(folder: Path, fleet: str) -> None:
    """Open a sandbox with such a service, say so, and wait to be killed."""
    await DockerSandboxes(DockerOptions(folder)).open(wanted(folder, fleet))
    sys.stdout.write("opened\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@pytest.mark.compose
def test_tries_at_the_same_time_share_neither_names_nor_ports_and_leave_nothing(tmp_path: Path) -> None:
    arguments = ["run", str(TASKS / "compose-plugin"), "--agent", "oracle", "--sandbox", "docker"]

    ran = bench([*arguments, "--tries", "2", "--jobs-dir", "jobs"], tmp_path)

    assert ran.returncode == 0, ran.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.rglob("result.json")]
    assert [item["rewards"] for item in results] == [{"reward": 1.0}, {"reward": 1.0}], results
    job = results[0]["job"]
    assert asyncio.run(DockerSandboxes(DockerOptions(tmp_path)).list({"bf.job": job})) == []


@pytest.mark.compose
async def test_keys_of_the_plugin_hold_beside_those_of_the_engine(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path))
    both = {**BY_PLUGIN, "main": {"cpu_shares": 512}}

    sandbox = await provider.open(wanted(tmp_path, f"keys-{os.getpid()}", both))
    try:
        script = (
            "cat /proc/sys/net/ipv4/ip_default_ttl /proc/sys/kernel/domainname; echo $PRICE; touch /s/seen"
        )
        inside = await service_sandbox(sandbox, "db").exec(Command(("sh", "-c", script), timeout_s=60))
        seen = await sandbox.exec(Command(("sh", "-c", "getent hosts db >/dev/null && ls /s"), timeout_s=60))
    finally:
        await sandbox.close()

    assert inside.stdout == b"77\nrack.$one\n5$MONEY\n", inside
    assert seen.stdout == b"seen\n", seen
    assert await provider.list({"bf.fleet": f"keys-{os.getpid()}"}) == []


@pytest.mark.compose
def test_killed_worker_leaves_nothing_of_the_plugin_that_the_reaper_does_not_remove(tmp_path: Path) -> None:
    check_that_the_reaper_removes_all(__name__, tmp_path, f"killed-plugin-{os.getpid()}")


@pytest.mark.compose
async def test_what_the_engine_refuses_is_told_in_the_plugins_words_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    provider, fleet = DockerSandboxes(DockerOptions(tmp_path)), f"refused-{os.getpid()}"

    with pytest.raises(SandboxError, match=r"\(cpuset\)(.|\n)*CPUs are not available") as caught:
        await provider.open(wanted(tmp_path, fleet, {"db": {"cpuset": "4095"}}))

    assert caught.value.code == "sandbox.start_failed"
    assert await provider.list({"bf.fleet": fleet}) == []


async def test_without_the_plugin_the_task_is_refused_with_file_line_and_key(tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path, program="/nonexistent/docker"))

    with pytest.raises(SandboxError, match=r"line 4: services\.db\.sysctls: needs the docker") as caught:
        await provider.open(wanted(tmp_path, f"none-{os.getpid()}"))

    assert caught.value.code == "task.unsupported"
    assert "Install the plugin" in (caught.value.hint or "")
    assert await provider.list({"bf.fleet": f"none-{os.getpid()}"}) == []
