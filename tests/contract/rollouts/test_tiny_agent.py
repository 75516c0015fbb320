"""The tiny agent of the test kit does what it is told, and goes wrong in each way it can be told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task
from benchflow_workers.agents.acp import AcpAgent
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.testing_agent import FILE, act

Take = Callable[..., Awaitable[AgentRun]]


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.root)])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of sandbox whose image has Python: the host's own."""
    return str(request.param)


@pytest.fixture
def take(sandbox: Sandbox, make_task: Callable[..., Task], tmp_path: Path) -> Take:
    async def run(*, handshake_s: float = 60.0, timeout_s: float = 60.0, **what: Any) -> AgentRun:
        name, _, value = act(**what).partition("=")
        context = AgentContext(
            task=make_task(), task_dir=tmp_path, spec=AgentSpec(name=f"acp:{FILE}"), script=Path(FILE),
            env={name: value}, oracle_env={}, timeout_s=timeout_s, user="agent", prompts=("Write it.",),
        )  # fmt: skip
        agent = AcpAgent(handshake_s=handshake_s, cancel_s=0.5)
        await prepare_user(sandbox, "agent", sandbox.workdir, timeout_s=60)
        await sandbox.put(agent.uploads(context))
        return await agent.run(sandbox, context)

    return run


async def test_it_runs_a_command_and_says_a_word(
    take: Take, sandbox: Sandbox, shell: Callable[..., Awaitable[str]]
) -> None:
    run = await take(run="echo 42 | tee answer.txt", say="All done.", chunks=3, noise=2, asks_permission=True)

    assert await shell(sandbox, "cat answer.txt") == "42\n"
    assert [event["type"] for event in run.events] == [
        "user_message", "permission", "tool_call", "agent_message", "turn_end",
    ]  # fmt: skip
    assert (run.events[2]["status"], run.events[2]["raw_output"]) == ("completed", "42\n")
    assert (run.events[3]["text"], run.events[3]["n_chunks"]) == ("All done.", 3)
    assert run.log.count(b"a line that is no message") == 2
    assert (run.failures, run.version) == ([], "tiny-agent 1")


@pytest.mark.parametrize("at", ["initialize", "session/new"])
async def test_where_it_hangs_before_its_turn_it_is_not_waited_for(take: Take, at: str) -> None:
    run = await take(hangs_at=at, handshake_s=1.0)

    assert [failure.code for failure in run.failures] == ["agent.no_handshake"]


async def test_where_it_hangs_in_its_turn_the_deadline_ends_it(take: Take) -> None:
    run = await take(hangs_at="session/prompt", timeout_s=2.0)

    assert (run.timed_out, run.failures) == (True, [])


@pytest.mark.parametrize("at", ["initialize", "session/new", "session/prompt"])
async def test_where_it_dies_its_turn_broke_off(take: Take, at: str) -> None:
    run = await take(dies_at=at)

    assert ([failure.code for failure in run.failures], run.exit_code) == (["agent.disconnected"], 7)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("API Error: 401 unauthorized", "agent.provider_auth"),
        ("429 Too Many Requests", "agent.rate_limited"),
        ("prompt is too long: 250000 tokens", "agent.context_overflow"),
        ("You have reached your usage limit", "agent.usage_limit"),
        ("400 invalid_request_error", "agent.rejected"),
        ("503 service unavailable", "agent.provider_failed"),
        ("something went wrong", "agent.protocol"),
    ],
)
async def test_what_its_error_says_is_told_by_type(take: Take, error: str, code: str) -> None:
    run = await take(fails_at="session/prompt", error=error)

    assert ([failure.code for failure in run.failures], run.is_broken) == ([code], True)


async def test_a_process_it_leaves_does_not_hold_its_turn(take: Take) -> None:
    run = await take(forks=True)

    assert (run.failures, run.is_broken) == ([], False)


def test_a_behaviour_it_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="sings"):
        act(sings=True)
