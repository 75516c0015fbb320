"""The order of phases, and what each kind of mishap does to the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.testing import completed
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.runner import run_attempt
from tests.worlds import REWARD_FILE, TurnAgent, World

MakeWorld = Callable[..., World]
GONE = SandboxError("sandbox.lost", "The sandbox is gone.")


async def run(world: World, observe: Callable[[str], object] = lambda phase: None) -> Rollout:
    rollout, _ = await run_attempt(world.attempt(), world.parts, world.scratch, observe)
    return rollout


def codes(rollout: Rollout) -> list[str]:
    return [failure.code for failure in rollout.failures]


async def test_trial_runs_its_phases_in_order_and_comes_to_a_verdict(make: MakeWorld) -> None:
    world = make(agent=TurnAgent(runs_as_user=True))
    world.sandboxes.on("benchflow-user", completed(0, b"benchflow-user:1000:1000:/home/agent\n"))
    world.sandboxes.on("take-turn", completed(0, b"I worked"))
    world.sandboxes.on("run-tests", completed(0, b"1 passed"), files={REWARD_FILE: b"0.5"})
    seen: list[str] = []

    rollout = await run(world, seen.append)

    assert seen == ["preparing", "building", "setup", "agent", "verifying", "collecting"]
    assert world.sandboxes.events == ["open", "exec", "exec", "kill agent", "exec", "get", "close"]
    assert [command.argv[0] for command in world.sandboxes.commands] == ["sh", "take-turn", "run-tests"]
    assert rollout.rewards == {"reward": 0.5}
    assert (rollout.agent_log, rollout.test_output) == (b"I worked", b"1 passed")
    assert rollout.sandbox_id == world.sandboxes.opened[0].id
    assert rollout.failures == ()
    assert sorted(rollout.seconds) == [
        "agent_execution", "agent_setup", "collect", "environment_setup", "verifier",
    ]  # fmt: skip


async def test_agent_out_of_time_is_still_verified(make: MakeWorld) -> None:
    world = make(toml="[agent]\ntimeout_sec = 0.02\n")
    world.sandboxes.on("take-turn", takes_s=60)

    rollout = await run(world)

    assert codes(rollout) == ["agent.timeout"]
    assert rollout.rewards == {"reward": 1.0}


async def test_agent_with_a_bad_exit_is_still_verified(world: World) -> None:
    world.sandboxes.on("take-turn", completed(1))
    world.scores(0.0)

    rollout = await run(world)

    assert codes(rollout) == ["agent.exited"]
    assert rollout.rewards == {"reward": 0.0}


async def test_sandbox_that_does_not_start_leaves_nothing_to_close(world: World) -> None:
    world.sandboxes.open_error = SandboxError("sandbox.build_failed", "No.\nstep 3")

    rollout = await run(world)

    assert codes(rollout) == ["sandbox.build_failed"]
    assert rollout.sandbox_id is None
    assert world.sandboxes.events == []
    assert list(rollout.seconds) == ["environment_setup"]


async def test_secrets_are_known_also_where_the_sandbox_does_not_start(make: MakeWorld) -> None:
    world = make(agent_spec={"env": ("PLAIN",)})
    world.environ["PLAIN"] = "value-of-plain"
    world.sandboxes.open_error = SandboxError("sandbox.start_failed", "PLAIN=value-of-plain is refused")

    _, secrets = await run_attempt(world.attempt(), world.parts, world.scratch, lambda phase: None)

    assert secrets == {"value-of-plain"}


async def test_trial_that_cannot_be_prepared_opens_no_sandbox(make: MakeWorld) -> None:
    world = make(agent_spec={"env": ("NOT_SET",)})

    rollout = await run(world)

    assert codes(rollout) == ["agent.env_missing"]
    assert world.sandboxes.events == []


async def test_sandbox_lost_before_the_agent_ends_gives_no_verdict(world: World) -> None:
    world.sandboxes.on("take-turn", raises=GONE)

    rollout = await run(world)

    assert codes(rollout) == ["sandbox.lost"]
    assert rollout.rewards is None
    assert [command.argv[0] for command in world.sandboxes.commands] == ["take-turn"]
    assert world.sandboxes.events[-1] == "close"


async def test_sandbox_lost_after_the_agent_is_the_verifiers_loss(world: World) -> None:
    world.sandboxes.on("take-turn", completed(0, b"I worked"))
    world.sandboxes.on("run-tests", raises=GONE)

    rollout = await run(world)

    assert codes(rollout) == ["verifier.sandbox_lost"]
    assert rollout.agent_log == b"I worked"
    assert rollout.test_output is None


async def test_sandbox_lost_after_the_tests_gives_no_verdict(world: World) -> None:
    world.sandboxes.on(
        "run-tests",
        files={REWARD_FILE: b"1"},
        then=lambda: setattr(world.sandboxes.opened[0], "is_closed", True),
    )

    rollout = await run(world)

    assert codes(rollout) == ["verifier.sandbox_lost"]
    assert rollout.rewards is None


async def test_logs_are_collected_although_the_set_up_failed(make: MakeWorld) -> None:
    world = make(toml='[[environment.setup_commands]]\ncommand = "make it"\n')
    world.sandboxes.on("make it", completed(1), files={"/logs/agent/setup.log": b"why"})
    folder = world.scratch

    rollout, _ = await run_attempt(world.attempt(), world.parts, folder, lambda phase: None)

    assert codes(rollout) == ["sandbox.start_failed"]
    assert (folder / "agent" / "setup.log").read_bytes() == b"why"
    assert len(world.sandboxes.commands) == 1


async def test_tests_without_a_reward_are_no_verdict(world: World) -> None:
    world.sandboxes.on("run-tests", completed(1, b"boom"))

    rollout = await run(world)

    assert codes(rollout) == ["verifier.no_reward"]
    assert rollout.test_output == b"boom"


async def test_verifier_that_breaks_is_recorded_as_a_bug_and_closes_the_sandbox(world: World) -> None:
    world.sandboxes.on("run-tests", files={REWARD_FILE: b"no number"})

    rollout = await run(world)

    assert codes(rollout) == ["trial.unexpected"]
    assert world.sandboxes.opened[0].is_closed


async def test_sandboxes_that_run_nothing_are_not_verified(world: World) -> None:
    world.sandboxes.capabilities = replace(world.sandboxes.capabilities, runs_commands=False)

    rollout = await run(world)

    assert (rollout.rewards, rollout.failures) == (None, ())
    assert [command.argv[0] for command in world.sandboxes.commands] == ["take-turn"]


@pytest.mark.parametrize("command", ["take-turn", "run-tests"])
async def test_trial_stopped_while_it_runs_closes_its_sandbox(world: World, command: str) -> None:
    begun = asyncio.Event()
    world.sandboxes.on(command, takes_s=50, then=begun.set)
    task = asyncio.create_task(run(world))
    await asyncio.wait_for(begun.wait(), 10)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.sandboxes.opened[0].is_closed


async def test_trial_stopped_while_the_sandbox_opens_goes_no_further(world: World) -> None:
    building = asyncio.Event()
    world.sandboxes.open_takes_s = 3600

    def observe(phase: str) -> None:
        if phase == "building":
            building.set()

    task = asyncio.create_task(run(world, observe))
    await asyncio.wait_for(building.wait(), 10)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.sandboxes.commands == []


async def test_sandbox_that_stays_is_logged_with_its_id_and_costs_no_verdict(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sandboxes.close_error = GONE

    with caplog.at_level(logging.WARNING):
        rollout = await run(world)

    assert rollout.rewards == {"reward": 1.0}
    assert rollout.failures == ()
    assert str(rollout.sandbox_id) in caplog.text
