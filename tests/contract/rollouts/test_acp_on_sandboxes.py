"""Agents of the Agent Client Protocol in real sandboxes: what they say, how they end, what is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_client.errors import AgentError, ObjectNotFoundError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import Effort
from benchflow_client.schema.task import Task
from benchflow_client.store.files import FileStore
from benchflow_workers.agents.acp import AcpAgent
from benchflow_workers.agents.base import AgentContext, AgentRun, Live
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.trial.live import TRAJECTORY, LiveTrajectory

AGENT = Path(__file__).parents[2] / "assets" / "agents" / "acp.sh"
USER = "agent"

MakeTask = Callable[..., Task]
Shell = Callable[..., Awaitable[str]]
Take = Callable[..., Awaitable[AgentRun]]


@pytest.fixture
def take(sandbox: Sandbox, make_task: MakeTask, tmp_path: Path) -> Take:
    """Return what prepares the user, places the agent, and takes its turn."""

    async def run(
        act: str,
        *prompts: str,
        idle_s: float = 0.0,
        timeout_s: float = 60.0,
        handshake_s: float = 60.0,
        script: Path = AGENT,
        effort: Effort | None = None,
        live: Live | None = None,
        **env: str,
    ) -> AgentRun:
        context = AgentContext(
            task=make_task(),
            task_dir=tmp_path,
            spec=AgentSpec(name=str(script), protocol="acp", idle_timeout_s=idle_s, effort=effort),
            script=script,
            env={"ACT": act, **env},
            oracle_env={},
            timeout_s=timeout_s,
            user=USER,
            prompts=prompts or ("Write it.",),
            live=live,
        )
        agent = AcpAgent(handshake_s=handshake_s, cancel_s=0.5)
        await prepare_user(sandbox, USER, sandbox.workdir, timeout_s=60)
        await sandbox.put(agent.uploads(context))
        return await agent.run(sandbox, context)

    return run


def kinds(run: AgentRun) -> list[str]:
    return [str(event["type"]) for event in run.events]


def codes(run: AgentRun) -> list[str]:
    return [failure.code for failure in run.failures]


async def written(shell: Shell, sandbox: Sandbox) -> str:
    return await shell(sandbox, "cat out.txt 2>/dev/null || true")


async def test_an_agent_works_and_its_trajectory_tells_it(take: Take, sandbox: Sandbox, shell: Shell) -> None:
    run = await take("work")

    assert await written(shell, sandbox) == "finished\n"
    assert (run.failures, run.is_broken, run.timed_out) == ([], False, False)
    assert kinds(run) == ["user_message", "tool_call", "agent_message", "turn_end"]
    assert run.events[1]["status"] == "completed"
    assert run.events[2]["text"] == "done"
    usage = run.usage
    assert (usage.n_tool_calls, usage.n_prompts, usage.n_input_tokens, usage.total_tokens) == (1, 1, 11, 18)
    assert usage.usage_source == "agent_native_acp"


async def test_prompts_are_given_one_after_the_other_in_one_session(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    run = await take("count", "first", "second")

    assert await written(shell, sandbox) == "1 first\n2 second\n"
    assert run.usage.n_prompts == 2


async def test_lines_of_any_size_arrive_whole(take: Take) -> None:
    run = await take("big")

    message = next(event for event in run.events if event["type"] == "agent_message")
    assert (message["n_chunks"], len(message["text"])) == (5, 65535 + 65536 + 65537 + 200_000 + 5_000_000)
    assert not run.is_broken


async def test_what_is_no_message_is_the_log(take: Take, sandbox: Sandbox, shell: Shell) -> None:
    run = await take("noise")

    assert await written(shell, sandbox) == "finished\n"
    assert kinds(run) == ["user_message", "agent_message", "turn_end"]
    for words in (b"npm notice", b"Welcome", b"DEBUG the tool ended", b'"level":"info"', b"{half a message"):
        assert words in run.log


async def test_a_deadline_keeps_what_was_done(take: Take, sandbox: Sandbox, shell: Shell) -> None:
    run = await take("late", timeout_s=3)

    assert (run.timed_out, run.is_broken, codes(run)) == (True, False, [])
    assert await written(shell, sandbox) == "finished\n"
    assert run.events[-1]["reason"] == "wall_clock_timeout"
    assert run.events[-1]["terminal_trajectory_complete"] is True


async def test_nothing_an_agent_started_acts_after_its_turn(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    run = await take("survivor", timeout_s=3)

    assert run.timed_out
    before = await written(shell, sandbox)
    await shell(sandbox, "sleep 0.5")
    assert await written(shell, sandbox) == before


async def test_an_agent_without_a_sign_of_work_is_stopped(take: Take) -> None:
    run = await take("late", idle_s=1)

    assert (codes(run), run.timed_out, run.is_broken) == (["agent.idle"], False, False)
    assert run.events[-1]["reason"] == "idle_timeout"


async def test_a_tool_that_runs_may_take_longer(take: Take) -> None:
    run = await take("tool-hangs", idle_s=30, timeout_s=3)

    assert (codes(run), run.timed_out) == ([], True)
    assert run.events[-1]["pending_tool_call_ids"] == ["t1"]
    assert run.events[-1]["terminal_trajectory_complete"] is False


@pytest.mark.parametrize("act", ["dies", "dies-with-child"])
async def test_an_agent_that_breaks_off_is_not_scored(take: Take, act: str) -> None:
    run = await take(act)

    assert (codes(run), run.is_broken, run.exit_code) == (["agent.disconnected"], True, 7)
    assert "exit code 7 in the middle of its turn" in run.failures[0].message
    assert run.events[1]["text"] == "working"
    assert (b"last words" in run.log) == (act == "dies")


@pytest.mark.parametrize(
    ("act", "code"),
    [
        ("limited", "agent.rate_limited"),
        ("confused", "agent.protocol"),
        ("silent", "agent.silent"),
        ("not-there", "agent.disconnected"),
    ],
)
async def test_an_agent_that_never_really_worked_is_not_scored(take: Take, act: str, code: str) -> None:
    run = await take(act)

    assert (codes(run), run.is_broken) == ([code], True)


async def test_an_agent_that_does_not_get_ready_is_not_waited_for(take: Take) -> None:
    run = await take("never-ready", handshake_s=1)

    assert (codes(run), run.is_broken) == (["agent.no_handshake"], True)
    assert "initialize" in run.failures[0].message


async def test_an_agent_with_a_mode_that_asks_nobody_is_put_into_it(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    await take("asks-nobody")

    assert await written(shell, sandbox) == "finished\n"


async def test_permissions_are_given_and_other_wishes_refused(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    run = await take("permission")

    assert await written(shell, sandbox) == "finished\n"
    assert [event["option_id"] for event in run.events if event["type"] == "permission"] == ["yes"]


OPTIONS = '"configOptions":[{"id":"model","currentValue":"small"},{"id":"effort","currentValue":"low"}]'
MODELS = '"models":{"currentModelId":"small","availableModels":[{"modelId":"small"},{"modelId":"large"}]}'


async def asked(shell: Shell, sandbox: Sandbox) -> list[tuple[str, dict[str, str]]]:
    """Return what the agent was asked for before its first prompt: methods and parameters."""
    lines = (await shell(sandbox, "cat asked.txt 2>/dev/null || true")).splitlines()
    return [(message["method"], message["params"]) for message in map(json.loads, lines)]


async def test_an_agent_is_asked_for_model_and_effort_by_the_options_it_offers(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    run = await take("work", effort="high", OFFERS=OPTIONS, BENCHFLOW_PROVIDER_MODEL="large")

    assert not run.failures
    assert await asked(shell, sandbox) == [
        ("session/set_config_option", {"sessionId": "s1", "configId": "model", "value": "large"}),
        ("session/set_config_option", {"sessionId": "s1", "configId": "effort", "value": "high"}),
    ]


async def test_an_agent_that_lists_models_is_asked_for_one_of_them(
    take: Take, sandbox: Sandbox, shell: Shell
) -> None:
    await take("work", OFFERS=MODELS, BENCHFLOW_PROVIDER_MODEL="large")

    assert await asked(shell, sandbox) == [("session/set_model", {"sessionId": "s1", "modelId": "large"})]


@pytest.mark.parametrize("offers", [MODELS, OPTIONS])
async def test_an_agent_that_has_the_model_already_is_asked_for_nothing(
    take: Take, sandbox: Sandbox, shell: Shell, offers: str
) -> None:
    run = await take("work", OFFERS=offers, BENCHFLOW_PROVIDER_MODEL="small")

    assert not run.failures
    assert await asked(shell, sandbox) == []


async def test_an_agent_without_an_option_for_the_effort_is_not_scored(take: Take) -> None:
    run = await take("work", effort="high")

    assert (codes(run), run.is_broken) == (["agent.protocol"], True)
    assert "no option for the effort" in run.failures[0].message


async def test_what_the_agent_says_it_is_is_recorded(take: Take) -> None:
    assert (await take("work")).version == "tiny 4.2"


async def test_what_an_agent_does_is_in_the_store_while_it_works(take: Take, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    key = f"jobs/j/t/{TRAJECTORY}"
    live = LiveTrajectory(store, "jobs/j/t/", frozenset({"working"}), interval_s=0.05)
    seen: list[bytes] = []

    async def look() -> None:
        while not seen:
            with contextlib.suppress(ObjectNotFoundError):
                text = await asyncio.to_thread(store.get, key)
                seen.extend([text] if b"agent_message" in text else [])
            await asyncio.sleep(0.02)

    looking = asyncio.ensure_future(look())
    run = await take("late", timeout_s=8, live=live)
    looking.cancel()

    assert run.timed_out
    assert [json.loads(line)["type"] for line in seen[0].splitlines()] == ["user_message", "agent_message"]
    assert b"[redacted]" in seen[0]
    assert b"working" not in seen[0]


async def test_a_program_the_sandbox_cannot_run_is_told_before_any_turn(take: Take, tmp_path: Path) -> None:
    script = tmp_path / "agent.sh"
    script.write_text("#!/opt/no-such-interpreter\n")

    with pytest.raises(AgentError, match="no-such-interpreter") as caught:
        await take("work", script=script)

    assert caught.value.code == "agent.not_runnable"
