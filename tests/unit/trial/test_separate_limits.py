"""Work that is too much to be moved to the tests' own sandbox: whose doing it is, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.testing import completed
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.runner import run_attempt
from tests.worlds import World

MakeWorld = Callable[..., World]
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
LITTLE, MUCH = b"5 100\n0 0\n", b"200001 0\n0 0\n"
LISTED = b"place\0/app\0\0count\x001\0\0"


@pytest.fixture
def world(make: MakeWorld) -> World:
    world = make(toml=SEPARATE)
    world.sandboxes.on("benchflow-list", completed(stdout=LISTED))
    world.sandboxes.on("benchflow-measure", completed(stdout=LITTLE))
    return world


async def run(world: World) -> Rollout:
    rollout, _ = await run_attempt(world.attempt(), world.parts, world.scratch, lambda phase: None)
    return rollout


def codes(rollout: Rollout) -> list[str]:
    return [failure.code for failure in rollout.failures]


async def test_agent_that_left_too_much_scores_zero_and_its_tests_do_not_run(world: World) -> None:
    world.sandboxes.on(
        "take-turn", then=lambda: world.sandboxes.on("benchflow-measure", completed(stdout=MUCH))
    )

    rollout = await run(world)

    assert (rollout.rewards, rollout.failures) == ({"reward": 0.0}, ())
    assert rollout.warnings[-1] == (
        "The tests did not run: the agent left more than can be moved into their own sandbox "
        "(the workspace: 200001 entries; 200000 are moved), and before it there was less. The reward is 0."
    )
    assert rollout.separate is not None
    assert rollout.separate.status == "refused"
    assert len(world.sandboxes.opened) == 1


async def test_what_was_too_much_before_the_agent_gives_no_verdict(world: World) -> None:
    world.sandboxes.on("benchflow-measure", completed(stdout=MUCH))

    rollout = await run(world)

    assert (rollout.rewards, codes(rollout)) == (None, ["verifier.separate_unfit"])
    assert rollout.failures[0].message == (
        "separate verifier: before the agent began there was more than can be moved: "
        "the workspace: 200001 entries; 200000 are moved."
    )


async def test_workspace_that_cannot_be_copied_gives_no_verdict_and_says_whose_failure_it_is(
    world: World,
) -> None:
    world.sandboxes.on("benchflow-list", raises=SandboxError("sandbox.exec_failed", "The disk is gone."))

    rollout = await run(world)

    assert (rollout.rewards, codes(rollout)) == (None, ["verifier.separate_failed"])
    assert rollout.failures[0].message == "separate verifier: The disk is gone."
    assert rollout.separate is not None
    assert (rollout.separate.status, len(world.sandboxes.opened)) == ("transfer_failed", 1)


async def test_own_sandbox_that_does_not_open_gives_no_verdict_after_a_finished_turn(world: World) -> None:
    def fail_next() -> None:
        world.sandboxes.open_error = SandboxError("sandbox.start_failed", "No room.")
        world.sandboxes.opened[0].files["/app/out"] = b"done"

    world.sandboxes.on("take-turn", then=fail_next)

    rollout = await run(world)

    assert codes(rollout) == ["verifier.separate_failed"], rollout
    assert rollout.separate is not None
    assert rollout.separate.status == "sandbox_failed"
    assert [item.files for item in rollout.separate.transfer] == [1, 0]


async def test_kept_workspace_says_what_its_tests_were_given_besides(make: MakeWorld) -> None:
    world = make(toml=SEPARATE, freeze_workspace=True)
    world.sandboxes.on("benchflow-list", completed(stdout=LISTED))
    world.sandboxes.on("benchflow-measure", completed(stdout=LITTLE))
    files = {"/app/out": b"x", "/logs/artifacts/report": b"y"}
    world.sandboxes.on("take-turn", then=lambda: world.sandboxes.opened[0].files.update(files))

    rollout = await run(world)

    assert rollout.frozen is not None
    assert rollout.frozen.left_out == ("/logs/artifacts",)
    assert rollout.warnings[-1] == "Only the workspace was kept, and not /logs/artifacts."


async def test_trial_that_is_stopped_while_its_tests_run_apart_leaves_neither_sandbox(world: World) -> None:
    running = asyncio.Event()
    world.sandboxes.on("take-turn", then=lambda: world.sandboxes.opened[0].files.update({"/app/out": b"x"}))
    world.sandboxes.on("run-tests", takes_s=60, then=running.set)
    world.parts.capacity.limit(cpus=1, memory_mb=2048)
    attempt = asyncio.ensure_future(run(world))
    await asyncio.wait_for(running.wait(), 60)

    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt

    assert [sandbox.is_closed for sandbox in world.sandboxes.opened] == [True, True]
    async with asyncio.timeout(60), world.parts.capacity.hold(1, 2048):
        pass  # what both had is given back
