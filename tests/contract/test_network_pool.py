"""An engine with hardly any networks: trials wait for each other's, and what stays full is told with a way out."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_compose_parts import NETWORK, list_parts, make_network, remove_part
from benchflow_workers.sandbox.docker_engine import connect, find_endpoint
from benchflow_workers.sandbox.docker_http import EngineHttp
from tests.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.dockerd]

LABELS = {"bf.fleet": "pool"}
N_NETWORKS = 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an engine of this test's own that has addresses for two networks."""
    folder = tmp_path_factory.mktemp("e")
    options = {
        "data-root": folder / "data", "exec-root": folder / "exec", "pidfile": folder / "pid",
        "host": f"unix://{folder}/s", "bridge": "none", "iptables": "false", "ip6tables": "false",
        "storage-driver": "vfs", "default-address-pool": "base=10.213.0.0/29,size=30",
    }  # fmt: skip
    with (folder / "log").open("wb") as log:
        # In a network of its own: an engine without a default bridge removes the one of the host.
        words = [
            "unshare",
            "--net",
            "--",
            "dockerd",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        process = subprocess.Popen(words, stdout=log, stderr=log)
    with process:
        until(lambda: answers(process, folder), what=(folder / "log").read_text)
        yield f"unix://{folder}/s"
        process.terminate()


def answers(process: subprocess.Popen[bytes], folder: Path) -> bool:
    assert process.poll() is None, (folder / "log").read_text()
    asked = ["docker", "--host", f"unix://{folder}/s", "version"]
    return subprocess.run(asked, capture_output=True, timeout=30, check=False).returncode == 0


async def client(engine: str) -> EngineHttp:
    return await connect(find_endpoint(engine))


async def test_more_trials_than_networks_all_get_one_in_time(engine: str) -> None:
    http = await client(engine)
    waits_s = (0.1,) * 200

    async def trial(name: str) -> str:
        await make_network(http, name, LABELS, is_internal=True, waits_s=waits_s)
        await asyncio.sleep(0.05)  # what the trial does with it
        await remove_part(http, f"{NETWORK}{name}")
        return name

    done = await asyncio.gather(*(trial(f"trial-{index}") for index in range(8)))

    assert len(done) == 8
    assert await list_parts(http, "docker", LABELS) == []


async def test_an_engine_that_stays_full_is_an_error_of_its_own_kind_that_is_tried_again(engine: str) -> None:
    http = await client(engine)
    names = [f"kept-{index}" for index in range(N_NETWORKS)]
    for name in names:
        await make_network(http, name, LABELS, is_internal=False, waits_s=())

    with pytest.raises(SandboxError, match="has no network left") as caught:
        await make_network(http, "one-more", LABELS, is_internal=False, waits_s=(0.01, 0.01))
    for name in names:
        await remove_part(http, f"{NETWORK}{name}")

    kind = FAILURES[caught.value.code]
    assert (caught.value.code, kind.category, kind.is_retried) == (
        "sandbox.network_exhausted", "sandbox_setup", True,
    )  # fmt: skip
    assert "default-address-pools" in (caught.value.hint or "")
