"""What a multi-step trial comes to, and what each mishap of a step does to the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchflow_client.errors import TrialError
from benchflow_client.store.files import FileStore
from benchflow_workers.testing import completed
from benchflow_workers.trial.prepare import prepare
from benchflow_workers.trial.recorder import outcome_of, result_of, write_attempt
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.runner import run_attempt
from tests.worlds import REWARD_FILE, TurnAgent, World

MakeWorld = Callable[..., World]
TWO = '[[steps]]\nname = "a"\n{a}\n[[steps]]\nname = "b"\n{b}\n'
FILES = {"steps/a/instruction.md": "Do a.\n", "steps/b/instruction.md": "Do b.\n"}


def two(make: MakeWorld, *, a: str = "", b: str = "", top: str = "", files: Any = None, **more: Any) -> World:
    return make(toml=top + TWO.format(a=a, b=b), files={**FILES, **(files or {})}, **more)


async def run(world: World) -> Rollout:
    rollout, _ = await run_attempt(world.attempt(), world.parts, world.scratch, lambda phase: None)
    return rollout


def rewards_by_turn(world: World, *rewards: float) -> None:
    """Let the tests of the first, second ... step give these rewards."""
    left = list(rewards)
    world.sandboxes.on("take-turn", completed(0, b"worked"), then=lambda: world.scores(left.pop(0)))


async def test_mean_is_over_all_steps(make: MakeWorld) -> None:
    world = two(make)
    rewards_by_turn(world, 1.0, 0.5)

    rollout = await run(world)

    assert rollout.rewards == {"reward": 0.75}
    assert [(name, one.rewards) for name, one in rollout.steps] == [
        ("a", {"reward": 1.0}), ("b", {"reward": 0.5}),
    ]  # fmt: skip
    assert rollout.warnings == ("Step 'a': read from a file", "Step 'b': read from a file")
    assert rollout.agent_log == b"== step a ==\nworked\n== step b ==\nworked\n"
    assert [event["type"] for event in rollout.events] == ["step", "turn", "step", "turn"]


async def test_last_step_decides_alone_with_final(make: MakeWorld) -> None:
    world = two(make, top='multi_step_reward_strategy = "final"\n')
    rewards_by_turn(world, 0.0, 1.0)

    assert (await run(world)).rewards == {"reward": 1.0}


@pytest.mark.parametrize("least", ["min_reward = 0.5", "min_reward = {reward = 0.1, speed = 0.1}"])
async def test_missed_least_reward_ends_the_trial_and_the_rest_counts_zero(
    make: MakeWorld, least: str
) -> None:
    world = two(make, a=least)
    rewards_by_turn(world, 0.4)

    rollout = await run(world)

    assert [name for name, _ in rollout.steps] == ["a"]
    assert rollout.rewards == {"reward": 0.2}
    assert rollout.warnings[-1] == "Stopped after step 'a', 1 of 2: its reward is below min_reward."


async def test_step_without_a_verdict_ends_the_trial_without_one(make: MakeWorld) -> None:
    world = two(make)
    world.sandboxes.on("run-tests", completed(1, b"boom"))

    rollout = await run(world)

    assert rollout.rewards is None
    assert [name for name, _ in rollout.steps] == ["a"]
    assert [(one.code, one.message) for one in rollout.failures] == [
        ("verifier.no_reward", "Step 'a': No reward was written.")
    ]
    assert outcome_of(rollout) == "verifier_errored"


async def test_agent_out_of_time_in_a_step_is_verified_and_the_next_one_starts(make: MakeWorld) -> None:
    world = two(make, a="[steps.agent]\ntimeout_sec = 0.02\n")
    world.sandboxes.on("take-turn", takes_s=0.5)

    rollout = await run(world)

    assert [one.code for one in rollout.failures] == ["agent.timeout"]
    assert rollout.rewards == {"reward": 1.0}
    assert len(rollout.steps) == 2


@pytest.mark.parametrize(
    ("files", "b", "command"),
    [
        ({"steps/b/workdir/setup.sh": "false\n"}, "", "setup.sh"),
        ({}, 'healthcheck = {command = "ping-it", retries = 1}', "ping-it"),
    ],
)
async def test_step_that_cannot_begin_is_collected_and_ends_the_trial(
    make: MakeWorld, files: dict[str, str], b: str, command: str
) -> None:
    world = two(make, b=b, files=files)
    world.sandboxes.on(command, completed(1, b"no"))

    rollout = await run(world)

    assert [one.code for one in rollout.failures] == ["sandbox.start_failed"]
    assert rollout.failures[0].message.startswith("Step 'b': ")
    assert rollout.rewards is None
    assert [name for name, _ in rollout.steps] == ["a", "b"]


async def test_what_the_step_before_left_must_go(make: MakeWorld) -> None:
    world = two(make)
    world.sandboxes.on("benchflow-step", completed(1, b"", b"busy"))

    rollout = await run(world)

    assert [one.code for one in rollout.failures] == ["sandbox.start_failed"]
    assert rollout.failures[0].detail == "busy"


async def test_set_up_that_fails_begins_no_step(make: MakeWorld) -> None:
    world = two(make, top='environment.setup_commands = [{command = "make it"}]\n')
    world.sandboxes.on("make it", completed(1))

    rollout = await run(world)

    assert [one.code for one in rollout.failures] == ["sandbox.start_failed"]
    assert rollout.steps == ()


def test_each_step_is_prepared_before_the_sandbox_with_its_own_variables(make: MakeWorld) -> None:
    world = two(make, b='verifier = {env = {TOKEN = "${STEP_TOKEN}"}}')
    with pytest.raises(TrialError) as caught:
        prepare(world.attempt(), world.parts)
    assert caught.value.code == "agent.env_missing"

    world.environ["STEP_TOKEN"] = "value-of-token"
    prepared = prepare(world.attempt(), world.parts)

    assert [step.prepared.verify_context.env for step in prepared.steps] == [{}, {"TOKEN": "value-of-token"}]
    assert [step.prepared.folder.task.instruction for step in prepared.steps] == ["Do a.\n", "Do b.\n"]
    assert "value-of-token" in prepared.secrets


def test_tests_of_a_step_lie_over_the_tasks(make: MakeWorld) -> None:
    files = {
        "tests/data/x": "shared", "tests/kind": "file", "tests/way/y": "shared",
        "steps/b/tests/data/x": "own", "steps/b/tests/kind/now": "folder", "steps/b/tests/way": "file",
        "steps/b/solution/solve.sh": "true\n",
    }  # fmt: skip
    world = two(make, files=files)

    one, other = (step.prepared.folder.path for step in prepare(world.attempt(), world.parts).steps)

    assert {str(path.relative_to(one)): path.read_text() for path in one.rglob("*") if path.is_file()} == {
        "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        "tests/data/x": "shared", "tests/kind": "file", "tests/way/y": "shared",
    }  # fmt: skip
    assert (other / "tests/data/x").read_text() == "own"
    assert (other / "tests/kind/now").read_text() == "folder"
    assert (other / "tests/way").read_text() == "file"
    assert (other / "solution/solve.sh").is_file()
    assert list(one.parent.glob(".*")) == []


async def test_user_of_a_step_gets_the_workspace_before_its_set_up(make: MakeWorld) -> None:
    world = two(
        make, b="agent = {user = 'bob'}", files={"steps/b/workdir/setup.sh": "true\r\n"},
        agent=TurnAgent(runs_as_user=True),
    )  # fmt: skip
    world.sandboxes.on("benchflow-user", completed(0, b"benchflow-user:1000:1000:/home/x\n"))

    rollout = await run(world)

    assert rollout.failures == ()
    users = [command.user for command in world.sandboxes.commands if "take-turn" in command.argv]
    assert users == ["agent", "bob"]
    set_up = next(command for command in world.sandboxes.commands if "./setup.sh" in " ".join(command.argv))
    assert set_up.user == "bob"
    assert world.sandboxes.opened[0].files["/root/setup.sh"] == b"true\n"


async def test_every_step_has_a_folder_and_a_line_in_the_result(make: MakeWorld) -> None:
    world = two(make)
    store, folder = FileStore(world.folder / "own-store"), world.scratch
    world.sandboxes.on("run-tests", completed(0, b"1 passed"), files={REWARD_FILE: b"1"})
    world.sandboxes.on("take-turn", completed(0, b"worked"))
    attempt = world.attempt()
    rollout, _ = await run_attempt(attempt, world.parts, folder, lambda phase: None)
    result = result_of(attempt, rollout, Redactor())

    write_attempt(store, result, rollout, folder=folder, redactor=Redactor())

    prefix = f"{result.job}/{result.rollout_name}"
    steps = json.loads(store.get(f"{prefix}/result.json"))["steps"]
    assert [(step["name"], step["reward"], step["error"]) for step in steps] == [
        ("a", 1.0, None),
        ("b", 1.0, None),
    ]
    assert steps[0]["timings"]["total"] >= steps[0]["timings"]["verifier"]
    assert store.get(f"{prefix}/steps/a/verifier/test-stdout.txt") == b"1 passed"
    assert store.get(f"{prefix}/steps/b/agent/solver.txt") == b"worked"
    assert result.timing.verifier is not None
