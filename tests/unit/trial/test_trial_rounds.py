"""What sessions and rounds do to a trial: what is kept, what is killed, what ends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_workers.agents.events import EVENTS_PATH
from benchflow_workers.sandbox.base import Command, Completed, Sandbox
from benchflow_workers.testing import completed
from benchflow_workers.trial.recorder import outcome_of, result_of
from benchflow_workers.trial.records import Rollout
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.runner import run_attempt
from benchflow_workers.users.base import RoundResult
from benchflow_workers.verifiers.base import VerifyContext
from tests.worlds import FileVerifier, TurnAgent, World

MakeWorld = Callable[..., World]

ROLES = """---
version: "1.0"
agents: {roles: {solver: {agent: job}, critic: {agent: agents/critic.sh, env: {LEVEL: high}}}}
scenes: [{turns: [solver, {role: solver, prompt: Again.}, critic, solver]}]
---
Make the build pass.
"""
USER = "---\nversion: '1.0'\nuser: {private_facts: {colour: blue}}\n---\nMake the build pass.\n"
SCRIPT = {"agents/critic.sh": "#!/bin/sh\n"}


class LookingVerifier(FileVerifier):
    """One that also looks on: its soft run is the command `look-on`, whose output is a reward."""

    async def check(self, sandbox: Sandbox, context: VerifyContext, logs: Path) -> Completed:
        done = await sandbox.exec(Command(("look-on",), timeout_s=context.timeout_s))
        if done.exit_code == 97:
            raise VerifierError("verifier.harden_failed", "The tests could not be removed again.")
        if done.exit_code == 0:
            (logs / "reward.txt").write_bytes(done.stdout)
        return done


def looked_at(make: MakeWorld, *, files: Any = None, **more: Any) -> World:
    """Make a world with an agent that has a user, and tests that can look on."""
    world = make(files=files, agent=TurnAgent(runs_as_user=True), **more)
    world.sandboxes.on("benchflow-user", completed(0, b"benchflow-user:1000:1000:/home/x\n"))
    world.parts = replace(world.parts, verifier=lambda task: LookingVerifier())
    return world


def native(make: MakeWorld, text: str, **more: Any) -> World:
    """Make such a world whose task is a task.md."""
    return looked_at(make, files={"task.md": text, **SCRIPT}, **more)


async def run(world: World) -> Rollout:
    rollout, _ = await run_attempt(world.attempt(), world.parts, world.scratch, lambda phase: None)
    return rollout


async def test_sessions_follow_each_other_in_one_workspace(make: MakeWorld) -> None:
    world = native(make, ROLES)
    world.sandboxes.on("take-turn", completed(0, b"worked"), files={EVENTS_PATH: b'{"type": "tool_call"}\n'})

    rollout = await run(world)

    assert rollout.failures == ()
    assert rollout.rewards == {"reward": 1.0}
    assert [session.turns for session in rollout.sessions] == [
        ("scene-1-turn-1-solver", "scene-1-turn-2-solver"),
        ("scene-1-turn-3-critic",),
        ("scene-1-turn-4-solver",),
    ]
    turns = [command.env for command in world.sandboxes.commands if "take-turn" in command.argv]
    assert [env.get("LEVEL") for env in turns] == [None, "high", None]
    assert rollout.usage.n_tool_calls == 1  # the file was not written anew, so nothing is counted twice
    assert rollout.agent_log.startswith(b"== scene-1-turn-1-solver ==\nworked\n== scene-1-turn-3-critic ==\n")
    kills = [event for event in world.sandboxes.events if event.startswith("kill")]
    assert kills == ["kill agent"] * 3  # twice between sessions, once before the tests


async def test_script_of_a_task_gets_none_of_the_jobs_variables(make: MakeWorld) -> None:
    world = native(make, ROLES, agent_spec={"env": ["EFFORT=high"]})

    await run(world)

    turns = [command.env for command in world.sandboxes.commands if "take-turn" in command.argv]
    assert [env.get("EFFORT") for env in turns] == ["high", None, "high"]


async def test_roles_are_played_by_the_kind_of_agent_they_name(make: MakeWorld) -> None:
    text = ROLES.replace("agents/critic.sh", "'acp:agents/critic.sh'").replace(
        "env: {LEVEL: high}", "timeout_sec: 7"
    )
    world, asked = native(make, text, timeout_multiplier=2), list[str]()
    taker = world.parts.agent("solver")
    world.parts = replace(world.parts, agent=lambda name: asked.append(name) or taker)

    rollout = await run(world)

    assert asked == ["solver", "acp"]
    assert [session.agent for session in rollout.sessions] == ["solver", "critic", "solver"]
    turns = [command.timeout_s for command in world.sandboxes.commands if "take-turn" in command.argv]
    assert turns == [60.0, 14.0, 60.0]


async def test_session_that_does_not_end_well_ends_the_scenes_and_the_tests_run(make: MakeWorld) -> None:
    world = native(make, ROLES)
    world.sandboxes.on("take-turn", completed(3, b"no"))

    rollout = await run(world)

    assert [failure.message for failure in rollout.failures] == [
        "scene-1-turn-1-solver: The agent ended with exit code 3."
    ]
    assert len(rollout.sessions) == 1
    assert rollout.warnings[0] == (
        "Stopped after scene-1-turn-2-solver, which did not end well; "
        "scene-1-turn-3-critic and later turns were not played."
    )
    assert rollout.rewards == {"reward": 1.0}


async def test_what_was_done_before_a_lost_sandbox_is_kept(make: MakeWorld) -> None:
    world = native(make, ROLES)
    world.sandboxes.on(
        "take-turn",
        completed(0, b"worked"),
        then=lambda: setattr(world.sandboxes.opened[0], "is_closed", True),
    )

    rollout = await run(world)

    assert rollout.failures[0].code == "sandbox.lost"
    assert rollout.rewards is None


@dataclass
class Sayings:
    """A user with a list of sayings, and what it was told of each round."""

    sayings: Sequence[Any]
    max_rounds: int = 5
    oracle_access: bool = False
    heard: list[RoundResult | None] = field(default_factory=list)
    known: list[str | None] = field(default_factory=list)

    def setup(self, instruction: str, solution: str | None = None) -> None:
        self.known = [instruction, solution]

    def run(self, round: int, instruction: str, round_result: RoundResult | None) -> Any:
        self.heard.append(round_result)
        said = self.sayings[round] if round < len(self.sayings) else None
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
def talking(
    make: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[World, Sayings]]:
    """Make a world whose job's user is installed, and return the user too."""

    def made(*sayings: Any, text: str = USER, **more: Any) -> tuple[World, Sayings]:
        user = Sayings(sayings, **more)
        info = tmp_path / "path" / "sayings-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sayings\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[benchflow.users]\nsayings = sayings_of_a_test:user\n")
        (tmp_path / "path" / "sayings_of_a_test.py").write_text(
            "made = []\ndef user():\n    return made[-1]\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path / "path"))
        monkeypatch.delitem(__import__("sys").modules, "sayings_of_a_test", raising=False)
        __import__("sayings_of_a_test").made.append(user)
        return native(make, text, user="sayings"), user

    return made


async def test_installed_user_hears_what_the_tests_gave_and_talks_in_place_of_the_tasks_own(talking) -> None:
    world, user = talking("First.", "Second.")
    world.sandboxes.on("look-on", completed(0, b"0.25"))

    rollout = await run(world)

    assert [row.prompt for row in rollout.rounds] == ["First.", "Second."]
    assert [heard and (heard.round, heard.rewards, heard.verifier_output) for heard in user.heard] == [
        None, (0, {"reward": 0.25}, "0.25"), (1, {"reward": 0.25}, "0.25"),
    ]  # fmt: skip
    assert user.known == ["Make the build pass.", None]
    assert rollout.rewards == {"reward": 1.0}
    assert world.sandboxes.opened[0].files["/instruction.md"] == b"Second."


async def test_only_a_user_that_asks_for_it_is_shown_the_solution(talking) -> None:
    world, user = talking(oracle_access=True)

    rollout = await run(world)

    assert user.known == ["Make the build pass.", "#!/bin/sh\ntrue\n"]
    assert not any("solution" in upload.target for upload in world.sandboxes.opened[0].uploads)
    assert rollout.rounds == ()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (ZeroDivisionError("by zero"), "The user could not go on: ZeroDivisionError: by zero"),
        (7, "The user said 7 in round 1, which is no prompt."),
        ("  ", "The user said '  ' in round 1, which is no prompt."),
    ],
)
async def test_user_that_fails_leaves_the_trial_without_a_verdict(
    talking, said: object, message: str
) -> None:
    world, _ = talking("First.", said)

    rollout = await run(world)

    assert [(failure.code, failure.message) for failure in rollout.failures] == [("user.failed", message)]
    assert len(rollout.rounds) == 1
    assert outcome_of(rollout) == "errored"


async def test_user_with_fewer_rounds_than_turns_cannot_talk(talking) -> None:
    roles = ROLES.replace(
        "{turns: [solver, {role: solver, prompt: Again.}, critic, solver]}", "{turns: [solver, solver]}"
    )
    world, _ = talking("First.", text=roles, max_rounds=1)

    (failure,) = (await run(world)).failures

    assert failure.message == "The user has 1 rounds, fewer than the 2 turns of the task."


async def test_tests_that_look_on_and_fail_are_told_and_the_rounds_go_on(make: MakeWorld) -> None:
    world = native(make, USER)
    world.sandboxes.on("look-on", completed(1, b"boom"))

    rollout = await run(world)

    assert [row.verifier_error for row in rollout.rounds] == ["No reward was written."] * 5
    assert rollout.rounds[1].prompt.endswith("colour: blue")
    assert rollout.failures == ()


async def test_tests_that_cannot_be_taken_away_end_the_trial(make: MakeWorld) -> None:
    world = native(make, USER)
    world.sandboxes.on("look-on", completed(97))

    rollout = await run(world)

    assert [failure.code for failure in rollout.failures] == ["verifier.harden_failed"]
    assert rollout.rewards is None
    assert len(rollout.sessions) == 1


async def test_secrets_the_tests_print_are_told_to_nobody(make: MakeWorld) -> None:
    toml = "[verifier.env]\nJUDGE_KEY = '${JUDGE_KEY}'\n"
    world = looked_at(make, toml=toml, loop="verify-retry:k=1,feedback=raw")
    world.environ["JUDGE_KEY"] = "sk-verysecret"
    world.sandboxes.on("look-on", completed(1, b"key sk-verysecret is wrong"))

    rollout = await run(world)

    assert "is wrong" in rollout.rounds[1].prompt
    assert "verysecret" not in rollout.rounds[1].prompt


async def test_self_review_asks_no_tests_before_the_verdict(make: MakeWorld) -> None:
    world = looked_at(make, loop="self-review:k=2")

    rollout = await run(world)
    result = result_of(world.attempt(), rollout, Redactor())

    assert not any("look-on" in command.argv for command in world.sandboxes.commands)
    assert [row.rewards for row in rollout.rounds] == [None] * 3
    assert (result.loop.iterations, result.loop.converged, result.loop.stop_reason) == (
        3,
        None,
        "iterations_used",
    )


async def test_agent_out_of_time_in_a_round_is_looked_at_and_goes_on(make: MakeWorld) -> None:
    world = looked_at(make, toml="[agent]\ntimeout_sec = 0.02\n", loop="verify-retry:k=1")
    world.sandboxes.on("take-turn", takes_s=0.5)
    world.sandboxes.on("look-on", completed(0, b"0"))

    rollout = await run(world)

    assert [failure.message for failure in rollout.failures] == [
        "round-0: The agent was stopped after 0.02 s.", "round-1: The agent was stopped after 0.02 s.",
    ]  # fmt: skip
    assert rollout.rewards == {"reward": 1.0}


@pytest.mark.parametrize("text", [ROLES, USER])
async def test_controls_act_once_whatever_the_task_declares(make: MakeWorld, text: str) -> None:
    world = native(make, text)
    world.parts = replace(world.parts, agent=lambda name: TurnAgent(is_control=True))

    rollout = await run(world)

    assert [command.argv for command in world.sandboxes.commands].count(("take-turn",)) == 1
    assert (rollout.sessions, rollout.rounds) == ((), ())
    assert rollout.rewards == {"reward": 1.0}
