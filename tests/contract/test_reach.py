"""Each kind of sandbox reaches the model gateway in the best way it has, or says what to set to have one."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.metered import MeteredAgent
from benchflow_workers.agents.reach import reach
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway, listen_publicly
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.sandbox.base import Command, Sandbox, SandboxProvider, SandboxSpec, Upload
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.relay import RESTARTS
from benchflow_workers.testing_models import ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor
from tests.engines import tcp_relay
from tests.waiting import until

pytestmark = pytest.mark.docker

ASKS = (Path(__file__).parents[1] / "assets/agents/asks_model.sh").read_text(encoding="utf-8")
PUBLIC = NetworkPolicy()
NONE = NetworkPolicy("no-network")


@pytest.fixture
def beside(tmp_path: Path) -> SandboxProvider:
    """A worker beside its engine."""
    return DockerSandboxes(DockerOptions(tmp_path / "state"))


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[SandboxProvider]:
    """A worker whose engine is on another host, as far as it knows."""
    async with tcp_relay() as url:
        yield DockerSandboxes(DockerOptions(tmp_path / "state", base_url=url))


@asynccontextmanager
async def opened(
    provider: SandboxProvider, image: str, network: str = "public"
) -> AsyncGenerator[Sandbox, None]:
    name = f"reach-{secrets.token_hex(6)}"
    spec = SandboxSpec(name, {"bf.trial": name}, image, None, "")
    sandbox = await provider.open(replace(spec, network=network))
    try:
        yield sandbox
    finally:
        await sandbox.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def address_of_the_host(sandbox: Sandbox) -> str:
    """Return the address by which a container reaches its host: that of its router."""
    script = "while read -r _ to via _; do [ $to = 00000000 ] && echo $via; done </proc/net/route"
    done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=60))
    return socket.inet_ntoa(bytes.fromhex(done.stdout.decode().strip())[::-1])


class Asking:
    """An agent that asks its model once, by the address and the token it is given."""

    is_control = False
    runs_as_user = False

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        done = await sandbox.exec(Command(("bash", "-c", ASKS), timeout_s=60, env=context.env))
        return AgentRun(exit_code=done.exit_code, timed_out=done.timed_out, log=done.stdout)


def metered(gateway: Gateway, models: ScriptedModels, folder: Path) -> MeteredAgent:
    target = Target("custom", "large-1", {"openai-completions": models.url}, "the-real-key-0123456789")
    return MeteredAgent(
        Asking(), gateway, target, Purse(Allowance()), folder / "calls.jsonl", Redactor([str(target.key)])
    )


def turn(folder: Path, network: NetworkPolicy = PUBLIC) -> AgentContext:
    task = Task(
        name="ask", form="task.toml", instruction="Ask.", config=TaskConfig(), verifier_dir="tests",
        oracle_dir="solution", has_dockerfile=True, has_compose=False,
    )  # fmt: skip
    return AgentContext(
        task=task, task_dir=folder, spec=AgentSpec(name="asks"), script=None, env={"FORBIDDEN_DIGEST": ""},
        oracle_env={}, timeout_s=60, user="root", prompts=("",), network=network,
    )  # fmt: skip


async def asked(
    sandbox: Sandbox, gateway: Gateway, folder: Path, network: NetworkPolicy = PUBLIC
) -> AgentRun:
    with scripted_models() as models:
        try:
            return await metered(gateway, models, folder).run(sandbox, turn(folder, network))
        finally:
            gateway.close()


@pytest.mark.root
async def test_where_the_worker_can_it_listens_inside(
    beside: SandboxProvider, docker_image: str, tmp_path: Path
) -> None:
    async with opened(beside, docker_image, "no-network") as sandbox:
        run = await asked(sandbox, Gateway(Prices()), tmp_path, NONE)

    assert (run.usage.endpoint_kind, run.usage.total_tokens) == ("loopback", 107)


@pytest.mark.parametrize("network", ["public", "no-network"])
async def test_where_it_cannot_a_program_inside_carries_the_calls(
    elsewhere: SandboxProvider, docker_image: str, tmp_path: Path, network: str
) -> None:
    async with opened(elsewhere, docker_image, network) as sandbox:
        run = await asked(sandbox, Gateway(Prices()), tmp_path, NetworkPolicy(network))

    assert b"All done." in run.log
    assert (run.usage.endpoint_kind, run.usage.total_tokens, run.is_broken) == ("relay", 107, False)


async def test_what_can_run_no_such_program_uses_the_public_url(
    elsewhere: SandboxProvider, docker_image: str, tmp_path: Path
) -> None:
    async with opened(elsewhere, docker_image) as sandbox:
        await sandbox.exec(Command(("rm", "/usr/bin/perl"), timeout_s=60))
        port = free_port()
        url = f"http://{await address_of_the_host(sandbox)}:{port}"
        gateway = Gateway(Prices(), listen_publicly(f"0.0.0.0:{port}", url))
        run = await asked(sandbox, gateway, tmp_path)

    assert b"All done." in run.log
    assert (run.usage.endpoint_kind, run.usage.total_tokens) == ("public", 107)


@pytest.mark.parametrize(
    ("url", "network", "said"),
    [
        ("", PUBLIC, "BENCHFLOW_GATEWAY_PUBLIC_URL on the worker"),
        ("", NONE, "no other way to the model gateway"),
        ("https://models.example", NONE, "is not reached with network 'no-network'"),
        ("https://models.example", NetworkPolicy("allowlist", allowed=("other.example",)), "'allowlist'"),
        ("https://models.example", NetworkPolicy("denylist", blocked=("models.example",)), "'denylist'"),
    ],
)
async def test_a_sandbox_without_any_way_is_told_what_to_set(
    elsewhere: SandboxProvider, docker_image: str, url: str, network: NetworkPolicy, said: str
) -> None:
    public = listen_publicly(f"127.0.0.1:{free_port()}", url) if url else None
    gateway = Gateway(Prices(), public)
    async with opened(elsewhere, docker_image, "no-network") as sandbox:
        await sandbox.exec(Command(("rm", "/usr/bin/perl"), timeout_s=60))
        with pytest.raises(SandboxError) as caught:
            async with reach(sandbox, gateway, network):
                pass
    gateway.close()

    assert caught.value.code == "task.unsupported"
    assert "neither python3 nor perl" in caught.value.message
    assert said in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "network",
    [
        NetworkPolicy("allowlist", allowed=("models.example",)),
        NetworkPolicy("denylist", blocked=("other.example",)),
    ],
    ids=["allowlist", "denylist"],
)
async def test_a_list_that_permits_the_public_url_leaves_that_way(
    elsewhere: SandboxProvider, docker_image: str, network: NetworkPolicy
) -> None:
    gateway = Gateway(Prices(), listen_publicly(f"127.0.0.1:{free_port()}", "https://models.example/bench"))
    async with opened(elsewhere, docker_image, "no-network") as sandbox:
        await sandbox.exec(Command(("rm", "/usr/bin/perl"), timeout_s=60))
        async with reach(sandbox, gateway, network) as way:
            pass
    gateway.close()

    assert (way.url, way.kind, way.failure) == ("https://models.example/bench", "public", None)


@dataclass
class Watched:
    """A sandbox that counts the programs that ended in it.

    Attributes:
        inner: The sandbox.
        ended: How many.
    """

    inner: Sandbox
    ended: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[Any, None]:
        try:
            async with self.inner.attach(command) as process:
                yield process
        finally:
            self.ended += 1


class Breaking(Asking):
    """It takes its own way to the model away."""

    async def run(self, sandbox: Any, context: AgentContext) -> AgentRun:
        run = await super().run(sandbox, context)
        script = "rm /usr/bin/perl; for p in /proc/[0-9]*; do grep -qs '^perl' $p/comm && kill -9 ${p#/proc/}; done"
        await sandbox.exec(Command(("sh", "-c", script), timeout_s=60))
        await asyncio.to_thread(until, lambda: sandbox.ended == 1 + RESTARTS)
        return run


async def test_a_turn_whose_way_broke_is_not_scored(
    elsewhere: SandboxProvider, docker_image: str, tmp_path: Path
) -> None:
    gateway = Gateway(Prices())
    async with opened(elsewhere, docker_image, "no-network") as sandbox:
        with scripted_models() as models:
            agent = replace(metered(gateway, models, tmp_path), inner=Breaking())
            run = await agent.run(Watched(sandbox), turn(tmp_path, NONE))
    gateway.close()

    assert run.is_broken
    assert run.failures[0].code == "sandbox.exec_failed"
    assert run.usage.total_tokens == 107
