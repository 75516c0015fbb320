"""Each phase of a real rollout has the network its task declares, and none begins with another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.sandbox.base import Sandbox, SandboxProvider, SandboxSpec, Upload
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.verifiers.registry import verifier_of
from tests.web_server import WebServer, web_server
from tests.worlds import TurnAgent, World, make_world

pytestmark = pytest.mark.root

SEEN = """#!/bin/bash
ask() {
  timeout 50 bash -c 'exec 3<>"/dev/tcp/$0/80" && printf "GET / HTTP/1.1\\r\\nHost: $0\\r\\n\\r\\n" >&3 \
&& head -n 1 <&3 | cut -d" " -f2' "$1" 2>/dev/null || echo nothing
}
routes=$(($(grep -c . /proc/net/route) - 1))
echo "$1: $([ $routes -gt 0 ] && echo cable || echo none), web $(ask web.example), other $(ask other.example)"
"""
"""What a phase sees, in one line: is there a route out, and what two names answer."""

TEST = "#!/bin/bash\ncat /seen/setup\nsee tests\necho 1 > /logs/verifier/reward.txt\n"
SETUP = "setup_commands = [{command = 'mkdir -p /seen; see setup > /seen/setup'}]\n"


class Looking(TurnAgent):
    """An agent that says what it sees, and leaves a process that goes on asking."""

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        del context
        turn = b"#!/bin/bash\nsetsid bash -c 'trap \"\" TERM; while sleep 60; do :; done' >/dev/null 2>&1 &\nsee agent\n"
        return (
            Upload("/usr/local/bin/take-turn", content=turn, mode=0o755),
            Upload("/usr/local/bin/see", content=SEEN.encode(), mode=0o755),
        )


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture
def provider(web_provider: SandboxProvider) -> SandboxProvider:
    return web_provider


def world_of(toml: str, folder: Path, *, runs_as_user: bool = True) -> World:
    files = {"tests/test.sh": TEST}
    return make_world(folder, toml=toml, files=files, agent=Looking(runs_as_user=runs_as_user))


async def seen_in(world: World, provider: SandboxProvider | Unable) -> tuple[Rollout, dict[str, str]]:
    """Run the attempt and return what each phase saw."""

    def the_one(kind: str) -> Any:
        return provider

    parts = replace(world.parts, provider=the_one, verifier=verifier_of)
    rollout, _ = await run_attempt(world.attempt(), parts, world.scratch, lambda phase: None)
    said = rollout.agent_log.decode() + (rollout.test_output or b"").decode()
    lines = (line.partition(": ") for line in said.splitlines() if ": " in line)
    return rollout, {phase: saw for phase, _, saw in lines}


async def test_agents_allowlist_holds_for_its_turn_alone(provider: SandboxProvider, tmp_path: Path) -> None:
    toml = f'[environment]\n{SETUP}[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["web.example"]\n'

    rollout, saw = await seen_in(world_of(toml, tmp_path), provider)

    assert rollout.failures == (), rollout.agent_log
    assert rollout.rewards == {"reward": 1.0}
    assert saw["agent"] == "cable, web 200, other nothing"
    assert (saw["setup"].split(",")[0], saw["tests"].split(",")[0]) == ("cable", "cable")


async def test_denylist_of_the_sandbox_holds_for_an_agent_that_is_root(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    toml = f'[environment]\n{SETUP}network_mode = "denylist"\nblocked_hosts = ["other.example"]\n'

    rollout, saw = await seen_in(world_of(toml, tmp_path, runs_as_user=False), provider)

    assert rollout.failures == (), rollout.agent_log
    assert saw["agent"] == "cable, web 200, other nothing"
    assert (saw["setup"].split(",")[0], saw["tests"].split(",")[0]) == ("cable", "cable")


async def test_agent_without_network_is_tested_with_one(provider: SandboxProvider, tmp_path: Path) -> None:
    toml = f'[environment]\n{SETUP}[agent]\nnetwork_mode = "no-network"\n'

    rollout, saw = await seen_in(world_of(toml, tmp_path), provider)

    assert rollout.failures == (), rollout.agent_log
    assert saw["agent"] == "none, web nothing, other nothing"
    assert (saw["setup"].split(",")[0], saw["tests"].split(",")[0]) == ("cable", "cable")


async def test_tests_may_have_the_network_that_their_sandbox_lacks(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    toml = f'[environment]\n{SETUP}network_mode = "no-network"\n[verifier]\nnetwork_mode = "public"\n'

    rollout, saw = await seen_in(world_of(toml, tmp_path), provider)

    assert rollout.failures == (), rollout.agent_log
    assert (saw["setup"], saw["agent"]) == ("none, web nothing, other nothing",) * 2
    assert saw["tests"].split(",")[0] == "cable"


class _Fixed:
    """A sandbox that keeps the network it was opened with."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "set_network":
            raise AttributeError(name)
        return getattr(self._inner, name)


class Unable:
    """A provider that claims what its sandboxes turn out not to do."""

    def __init__(self, inner: SandboxProvider) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(self, spec: SandboxSpec) -> Any:
        return _Fixed(await self._inner.open(spec))


async def test_agent_is_not_started_where_its_network_cannot_be_restricted(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    toml = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["web.example"]\n'

    world = world_of(toml, tmp_path)
    rollout, saw = await seen_in(world, Unable(provider))

    assert [failure.code for failure in rollout.failures] == ["sandbox.network_not_enforced"]
    assert rollout.rewards is None
    assert saw == {}
    assert await provider.list({"bf.job": world.plan.job}) == []


async def test_network_that_the_host_cannot_restrict_is_told_before_anything_starts(
    provider: SandboxProvider, tmp_path: Path
) -> None:
    with pytest.raises(SandboxError, match="cannot be opened with network 'allowlist'") as caught:
        await provider.open(SandboxSpec("bf-x", {}, "debian:bookworm-slim", None, "", network="allowlist"))

    assert caught.value.code == "task.unsupported"
