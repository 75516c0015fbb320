"""Each phase by itself: what it asks of the sandbox, and what it makes of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox
from benchflow_workers.agents.cli_text import plain_text
from benchflow_workers.sandbox.base import Completed, SandboxSpec
from benchflow_workers.testing import ScriptedSandbox, ScriptedSandboxes, completed
from benchflow_workers.trial import phases
from benchflow_workers.trial.prepare import prepare
from benchflow_workers.trial.records import Prepared, Rollout
from benchflow_workers.trial.session import Session
from tests.worlds import TurnAgent, World

MakeWorld = Callable[..., World]
SETUP = """
[[environment.setup_commands]]
command = "make first"
user = "builder"
cwd = "/srv"
timeout_sec = 5
[environment.setup_commands.env]
MODE = "fast"
[[environment.setup_commands]]
command = "make second"
"""
HEALTH = """
[environment.healthcheck]
command = "curl up"
interval_sec = 0.01
start_interval_sec = 0.01
retries = 2
"""


async def opened(world: World) -> tuple[Prepared, ScriptedSandbox]:
    prepared = prepare(world.attempt(), world.parts)
    return prepared, await world.sandboxes.open(prepared.sandbox)


async def set_up(prepared: Prepared, sandbox: ScriptedSandbox) -> None:
    async for _ in phases.set_up(prepared, sandbox, Path("/nonexistent/attempt")):
        pass


def lines(sandboxes: ScriptedSandboxes) -> list[str]:
    return [command.argv[-1] for command in sandboxes.commands]


async def test_two_versions_of_a_program_are_not_installed_in_one_sandbox(make: MakeWorld) -> None:
    prepared, sandbox = await opened(make())
    install = InSandbox(script="get ${version}", command="run")
    first = AgentDefinition(name="tiny", version="1", protocol="text", install=install)
    others = [first, first.model_copy(update={"version": "2"})]
    context = replace(prepared.agent_context, definition=first)
    both = replace(
        prepared,
        agent=plain_text(),
        agent_context=context,
        sessions=tuple(
            Session((), None, "role", "tiny", plain_text(), replace(context, definition=one))
            for one in others
        ),
    )

    with pytest.raises(AgentError, match="'1' and '2'") as caught:
        await set_up(both, sandbox)

    assert caught.value.code == "agent.not_runnable"
    await set_up(replace(both, sessions=both.sessions[:1]), sandbox)


async def test_setup_commands_run_in_order_as_the_task_says(make: MakeWorld) -> None:
    world = make(toml=SETUP)
    prepared, sandbox = await opened(world)

    await set_up(prepared, sandbox)

    first, second = world.sandboxes.commands
    assert first.argv == ("sh", "-c", "make first")
    assert (first.user, first.workdir, first.timeout_s, first.env) == (
        "builder",
        "/srv",
        5.0,
        {"MODE": "fast"},
    )
    assert (second.user, second.workdir, second.env) == ("root", None, {})


async def test_setup_command_that_fails_ends_the_trial_with_its_last_words(make: MakeWorld) -> None:
    world = make(toml=SETUP)
    world.sandboxes.on("make first", completed(3, b"out " * 2000, b"no rule to make target"))
    prepared, sandbox = await opened(world)

    with pytest.raises(SandboxError) as caught:
        await set_up(prepared, sandbox)

    assert caught.value.code == "sandbox.start_failed"
    assert "'make first' of task 'fix-build' ended with exit code 3" in caught.value.message
    assert caught.value.message.endswith("no rule to make target")
    assert len(caught.value.message) < 2200
    assert lines(world.sandboxes) == ["make first"]


async def test_setup_command_that_does_not_end_is_told_apart(make: MakeWorld) -> None:
    world = make(toml=SETUP.replace("timeout_sec = 5", "timeout_sec = 0.02"))
    world.sandboxes.on("make first", takes_s=60)
    prepared, sandbox = await opened(world)

    with pytest.raises(SandboxError, match=r"did not end within 0\.02 s"):
        await set_up(prepared, sandbox)


async def test_agent_gets_its_user_and_root_needs_none(make: MakeWorld) -> None:
    world = make(agent=TurnAgent(runs_as_user=True))
    world.sandboxes.on("benchflow-user", completed(0, b"benchflow-user:1000:1000:/home/agent\n"))
    prepared, sandbox = await opened(world)

    await set_up(prepared, sandbox)
    await set_up(replace(prepared, agent=TurnAgent()), sandbox)

    assert len(world.sandboxes.commands) == 1
    assert "agent" in world.sandboxes.commands[0].argv


async def test_healthcheck_is_asked_until_it_succeeds(make: MakeWorld) -> None:
    world = make(toml=HEALTH)
    world.sandboxes.on("curl", completed(1), then=lambda: world.sandboxes.on("curl", completed(0)))
    prepared, sandbox = await opened(world)

    await set_up(prepared, sandbox)

    assert lines(world.sandboxes) == ["curl up", "curl up"]


async def test_healthcheck_that_keeps_failing_ends_the_trial(make: MakeWorld) -> None:
    world = make(toml=HEALTH)
    world.sandboxes.on("curl", completed(7, b"", b"connection refused"))
    prepared, sandbox = await opened(world)

    with pytest.raises(SandboxError) as caught:
        await set_up(prepared, sandbox)

    assert caught.value.code == "sandbox.start_failed"
    assert caught.value.message == "The healthcheck 'curl up' failed 2 times.\nconnection refused"
    assert lines(world.sandboxes) == ["curl up", "curl up"]


async def test_failures_in_the_start_period_do_not_count(make: MakeWorld) -> None:
    world = make(toml=HEALTH + "start_period_sec = 60\n")
    asked = 0

    def begin() -> None:
        nonlocal asked
        asked += 1
        if asked == 4:
            world.sandboxes.on("curl", completed(0))

    world.sandboxes.on("curl", completed(1), then=begin)
    prepared, sandbox = await opened(world)

    await set_up(prepared, sandbox)

    assert asked == 4
    assert len(world.sandboxes.commands) == 5


@pytest.mark.parametrize(
    ("answer", "is_control", "codes"),
    [
        (completed(0), False, []),
        (completed(2, b"Traceback"), False, ["agent.exited"]),
        (completed(2, b"Traceback"), True, []),
    ],
)
async def test_bad_exit_of_an_agent_is_recorded_and_that_of_a_control_is_not(
    make: MakeWorld, answer: Completed, is_control: bool, codes: list[str]
) -> None:
    world = make(agent=TurnAgent(is_control=is_control))
    world.sandboxes.on("take-turn", answer)
    prepared, sandbox = await opened(world)

    rollout = await phases.take_turn(prepared, sandbox, Rollout())

    assert [failure.code for failure in rollout.failures] == codes
    assert rollout.agent_exit_code == answer.exit_code
    assert rollout.agent_log == answer.stdout
    assert len(rollout.events) == 1


async def test_deadline_of_the_agent_is_a_failure_that_says_how_long_it_was(make: MakeWorld) -> None:
    world = make(toml="[agent]\ntimeout_sec = 0.02\n")
    world.sandboxes.on("take-turn", takes_s=60)
    prepared, sandbox = await opened(world)

    rollout = await phases.take_turn(prepared, sandbox, Rollout())

    assert [failure.code for failure in rollout.failures] == ["agent.timeout"]
    assert rollout.failures[0].message == "The agent was stopped after 0.02 s."
    assert rollout.agent_exit_code is None


ARTIFACTS = """
[[artifacts]]
source = "/app/report"
[[artifacts]]
source = "/app/out.txt"
destination = "kept/out.txt"
[[artifacts]]
source = "/app/../../../../escape"
[[artifacts]]
source = "/app/missing"
"""


async def test_logs_and_declared_artifacts_are_collected_and_nothing_leaves_the_folder(
    make: MakeWorld,
) -> None:
    world = make(toml=ARTIFACTS)
    prepared, sandbox = await opened(world)
    sandbox.files.update({
        "/logs/agent/a.log": b"log",
        "/app/report/one.html": b"one",
        "/app/out.txt": b"out",
        "/app/../../../../escape": b"escaped",
    })
    folder = world.scratch

    await phases.collect(prepared, sandbox, folder)

    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found.pop("artifacts/manifest.json")
    assert {name: data for name, data in found.items() if not name.startswith("verifier")} == {
        "agent/a.log": b"log",
        "artifacts/app/report/one.html": b"one",
        "artifacts/kept/out.txt": b"out",
    }
    assert not any(path.name == "escape" for path in world.folder.rglob("*"))


async def test_artifact_whose_place_is_taken_is_left_out_without_harm(make: MakeWorld) -> None:
    """An agent may write /logs/artifacts itself: that must not cost the verdict."""
    world = make(toml=ARTIFACTS)
    prepared, sandbox = await opened(world)
    sandbox.files.update({
        "/logs/artifacts/kept": b"a file where a folder should be",
        "/app/out.txt": b"out",
        "/app/report/one.html": b"one",
    })
    folder = world.scratch

    await phases.collect(prepared, sandbox, folder)

    assert (folder / "artifacts/kept").read_bytes() == b"a file where a folder should be"
    assert (folder / "artifacts/app/report/one.html").read_bytes() == b"one"


def test_events_an_agent_wrote_follow_those_of_its_turn(world: World) -> None:
    folder = world.scratch
    (folder / "agent").mkdir()
    (folder / "agent" / "events.jsonl").write_bytes(b'{"type": "tool_call"}\n{"type": "message"}\nno json\n')

    rollout = phases.with_events(Rollout(events=({"type": "turn"},)), folder, None)

    assert [event["type"] for event in rollout.events] == ["turn", "tool_call", "message", "unreadable"]
    assert rollout.usage.n_tool_calls == 1


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_events_that_are_no_file_are_none(world: World, kind: str) -> None:
    folder = world.scratch
    file = folder / "agent" / "events.jsonl"
    file.parent.mkdir()
    if kind == "folder":
        file.mkdir()
    if kind == "link":
        file.symlink_to(world.folder / "tasks" / "fix-build" / "task.toml")

    assert phases.with_events(Rollout(), folder, None).events == ()


async def test_verdict_is_read_from_what_the_tests_left(world: World) -> None:
    prepared, _ = await opened(world)
    folder = world.scratch
    (folder / "verifier").mkdir()
    (folder / "verifier" / "reward.txt").write_text("0.25")

    rollout = phases.judge(prepared, completed(), Rollout(warnings=("before",)), folder)

    assert rollout.rewards == {"reward": 0.25}
    assert rollout.warnings == ("before", "read from a file")
    assert rollout.failures == ()


@pytest.mark.parametrize("is_file", [True, False])
async def test_missing_folder_of_the_verifier_is_no_verdict(world: World, is_file: bool) -> None:
    prepared, _ = await opened(world)
    folder = world.scratch
    if is_file:
        (folder / "verifier").write_text("in the way")

    rollout = phases.judge(prepared, completed(), Rollout(), folder)

    assert rollout.rewards is None
    assert [failure.code for failure in rollout.failures] == ["verifier.no_reward"]


async def test_sandbox_that_hangs_while_it_closes_does_not_hold_the_result_up() -> None:
    sandboxes = ScriptedSandboxes(close_takes_s=3600)
    sandbox = await sandboxes.open(spec())

    is_closed = await asyncio.wait_for(phases.close(sandbox, timeout_s=0.05), 10)

    assert is_closed is False


async def test_sandbox_that_cannot_be_closed_is_left_to_the_reaper() -> None:
    sandboxes = ScriptedSandboxes(close_error=SandboxError("sandbox.lost", "Gone."))
    sandbox = await sandboxes.open(spec())

    assert await phases.close(sandbox) is False


async def test_closing_is_waited_for_although_the_trial_is_told_to_stop() -> None:
    sandboxes = ScriptedSandboxes(close_takes_s=0.05)
    sandbox = await sandboxes.open(spec())
    closing = asyncio.create_task(phases.close(sandbox))
    await asyncio.sleep(0)

    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()

    assert await closing is True
    assert sandbox.is_closed


def test_time_of_a_phase_adds_up_and_counts_when_it_fails() -> None:
    watch = phases.Stopwatch()

    with watch.time("agent"):
        pass
    first = watch.seconds["agent"]
    with pytest.raises(KeyError), watch.time("agent"):
        raise KeyError

    assert watch.seconds["agent"] >= first >= 0


def spec() -> SandboxSpec:
    return SandboxSpec(name="s", labels={}, image=None, build_context=Path(), build_digest="d")
