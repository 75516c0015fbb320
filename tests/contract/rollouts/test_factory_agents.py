"""Agents that are Python code on the worker, in real sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.factory import FactoryAgent
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox

SOURCE = '''\
"""An agent of somebody's."""

import asyncio
import sys


class Session:
    def __init__(self, sandbox):
        self.sandbox, self.steps, self.cancelled = sandbox, [], False

    async def prompt(self, text):
        done = await self.sandbox.exec("id -un; pwd; printf '%s' \\"$MODE\\"")
        self.steps.append({"type": "tool_call", "title": "id", "raw_output": done.stdout.decode()})
        await self.sandbox.upload("deep/out.txt", text.encode())
        return (await self.sandbox.download("deep/out.txt")).decode().upper()


class Agent:
    session = Session

    def connect(self, sandbox, role):
        return self.session(sandbox)


class Plain(Session):
    def prompt(self, text):
        return "from a thread"


class Slow(Session):
    async def prompt(self, text):
        await asyncio.sleep(600)

    def cancel(self):
        raise RuntimeError("not so fast")


class Broken(Session):
    async def prompt(self, text):
        raise LookupError("no idea")


class Leaving(Session):
    def prompt(self, text):
        sys.exit("the end of all")


class Odd(Session):
    async def prompt(self, text):
        deep = []
        for _ in range(5000):
            deep = [deep]
        self.steps = [{"type": "tool_call", "deep": deep}]


class Nosy(Session):
    async def prompt(self, text):
        return (await self.sandbox.download("/etc/shadow")).decode()


def make(kind):
    return lambda: type("Made", (Agent,), {"session": kind})()


plain, slow, broken, nosy, leaving, odd = map(make, (Plain, Slow, Broken, Nosy, Leaving, Odd))
'''
POINTS = """\
[benchflow.agent_factories]
works = of_somebody_factory:Agent
plain = of_somebody_factory:plain
slow = of_somebody_factory:slow
broken = of_somebody_factory:broken
nosy = of_somebody_factory:nosy
leaving = of_somebody_factory:leaving
odd = of_somebody_factory:odd
gone = of_somebody_gone:anything
"""

Take = Callable[..., Awaitable[AgentRun]]


@pytest.fixture
def take(
    sandbox: Sandbox, make_task: Callable[..., Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Take:
    """Return what installs the package and lets one of its agents take its turn."""
    package = tmp_path / "package"
    info = package / "of_somebody_factory-1.dist-info"
    info.mkdir(parents=True)
    (package / "of_somebody_factory.py").write_text(SOURCE)
    (package / "of_somebody_gone.py").write_text("import sys; sys.exit(3)")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-somebody-factory\nVersion: 1\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(package)

    async def run(name: str, *prompts: str, timeout_s: float = 60.0) -> AgentRun:
        context = AgentContext(
            task=make_task(), task_dir=tmp_path, spec=AgentSpec(name=f"factory:{name}"), script=None,
            env={"MODE": "fast"}, oracle_env={}, timeout_s=timeout_s, user="agent", prompts=prompts or ("Write it.",),
        )  # fmt: skip
        agent = FactoryAgent()
        await prepare_user(sandbox, "agent", sandbox.workdir, timeout_s=60)
        await sandbox.put(agent.uploads(context))
        return await agent.run(sandbox, context)

    return run


async def test_it_works_in_the_sandbox_as_the_agents_user(take: Take, sandbox: Sandbox) -> None:
    run = await take("works", "one", "two")

    assert (run.failures, run.is_broken, run.timed_out) == ([], False, False)
    said = [event["text"] for event in run.events if event["type"] == "agent_message"]
    assert said == ["ONE", "TWO"]
    steps = [event for event in run.events if event["type"] == "tool_call"]
    assert steps[0]["raw_output"] == f"agent\n{sandbox.workdir}\nfast"
    assert (run.usage.n_prompts, run.usage.n_tool_calls) == (2, 2)


async def test_code_that_is_no_coroutine_runs_beside_the_loop(take: Take) -> None:
    run = await take("plain")

    assert [event["text"] for event in run.events if event["type"] == "agent_message"] == ["from a thread"]


async def test_at_the_end_of_its_time_it_is_stopped(take: Take) -> None:
    run = await take("slow", timeout_s=1.5)

    assert (run.timed_out, run.is_broken) == (True, False)


async def test_what_its_code_raises_is_no_attempt_at_the_task(take: Take) -> None:
    run = await take("broken")

    assert ([failure.code for failure in run.failures], run.is_broken) == (["agent.protocol"], True)
    assert "LookupError: no idea" in run.failures[0].message


@pytest.mark.parametrize("name", ["leaving", "gone"])
async def test_code_that_ends_its_process_ends_no_more_than_its_turn(take: Take, name: str) -> None:
    run = await take(name)

    assert ([failure.code for failure in run.failures], run.is_broken) == (["agent.protocol"], True)
    assert "SystemExit" in run.failures[0].message


async def test_steps_that_nobody_could_write_are_left_out_and_told(take: Take) -> None:
    run = await take("odd")

    assert ([failure.code for failure in run.failures], run.is_broken) == (["agent.protocol"], True)
    assert not any(event["type"] == "tool_call" for event in run.events)


async def test_it_reads_no_more_than_the_agents_user(take: Take) -> None:
    with pytest.raises(AgentError, match="/etc/shadow"):
        await take("nosy")


async def test_a_factory_that_is_not_installed_is_named_with_those_that_are(take: Take) -> None:
    with pytest.raises(AgentError, match="'wroks'") as caught:
        await take("wroks")

    assert caught.value.code == "agent.not_runnable"
    assert "'works'" in caught.value.hint
