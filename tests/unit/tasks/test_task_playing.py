"""Which turns cannot be played, and why: known before anything is sent."""

from __future__ import annotations

import pytest

from benchflow_client.plan.playing import most_rounds, unplayable
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.tasks.read import read_task

SCRIPT = {"agents/critic.sh": "#!/bin/sh\n"}


def reasons(
    make_document, yaml: str, agent: str = "./solve.sh", body: str = "Do it.", **job: str
) -> tuple[str, ...]:
    task = read_task(make_document(f"---\n{yaml}\n---\n{body}\n", SCRIPT))
    spec = JobSpec.model_validate({"tasks": "tasks", "agent": agent, **job})
    return unplayable(task, AgentSpec(name=agent), spec)


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("version: '1.3'", ()),
        ("agents: {roles: {a: {agent: job}, b: {agent: agents/critic.sh}}}", ()),
        ("agents: {roles: {a: {agent: solve}}}", ()),
        ("agents: {roles: {a: {agent: job}, b: {agent: codex-x}}}", ("agents.roles.b.agent: this version has no agent 'codex-x'",)),
        ("agents: {roles: {a: {agent: job}, b: {agent: oracle}}}", ("agents.roles.b.agent: 'oracle' is a control, which plays no role",)),
        ("agents: {roles: {b: {agent: agents/critic.sh}}}", ("agents.roles: 'solve' plays none of them; they are played by agents/critic.sh",)),
        ("scenes: [{}]", ("scenes: no role has a turn in them",)),
        ("agents: {roles: {a: {agent: job}, b: {agent: codex-x}}}\nscenes: [{turns: [a]}]", ()),
    ],
)  # fmt: skip
def test_turns_that_cannot_be_played_are_reasons_with_their_key(make_document, yaml, expected):
    assert reasons(make_document, yaml) == expected


def test_turn_that_is_told_nothing_is_a_reason(make_document):
    yaml = "agents: {roles: {a: {agent: job}}}\nscenes: [{turns: [{role: a, prompt: Go.}, a]}]"

    assert reasons(make_document, yaml, body="") == (
        "scenes: scene-1-turn-2-a is told nothing; give it a prompt, or write one below the front matter",
    )


@pytest.mark.parametrize("agent", ["oracle", "nop", "probe:nothing"])
def test_controls_play_no_turns_and_run_every_task(make_document, agent):
    assert reasons(make_document, "profile: multi-agent", agent) == ()


ONE_ROLE = "agents: {roles: {a: {agent: job}, b: {agent: agents/critic.sh}}}"


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("user: {}", ()),
        ("user: {model: deterministic, stop_rule: ends-after-3-rounds}\nbenchflow: {nudges: {mode: simulated-user, nudge_budget: 2, confirmation_policy: human}}", ()),
        ("user: {model: claude-x}", ("user.model: 'claude-x': a model plays no user in this version",)),
        ("user: {model: bob}", ("user.model: 'bob' is neither a model nor one of deterministic, scripted",)),
        ("benchflow: {nudges: {mode: simulated-user}}", ("benchflow.nudges: nudges need a user",)),
        ("user: {}\nbenchflow: {nudges: {mode: x}}", ("benchflow.nudges.mode: 'x': only simulated-user is run by this version",)),
        ("user: {}\nbenchflow: {nudges: {nudge_budget: many}}", ("benchflow.nudges.nudge_budget: expected a whole number from 1",)),
        ("user: {}\nbenchflow: {nudges: {branchable: true}}", ("benchflow.nudges.branchable: trials are not branched by this version",)),
        ("user: {}\nbenchflow: {nudges: {moode: x}}", ("benchflow.nudges.moode: no such key",)),
        (f"user: {{}}\n{ONE_ROLE}", ("scenes[0]: a user talks to one role in a scene, not to a, b",)),
        (f"user: {{}}\n{ONE_ROLE}\nscenes: [{{turns: [a, a]}}, {{turns: [b]}}]", ()),
        (f"user: {{stop_rule: x-2-rounds}}\n{ONE_ROLE}\nscenes: [{{turns: [a, a]}}, {{turns: [b]}}]", ("user.stop_rule: 2 rounds are fewer than the 3 turns",)),
        ("user: {}\nverifier: {user: agent}", ("verifier.user: tests between rounds are kept from the agent only where root runs them",)),
        ("user: {}\nverifier: {sandbox_mode: separate}", ("verifier.sandbox: tests in a sandbox of their own cannot run between rounds",)),
        ("user: {}\nverifier: {service: db}", ("verifier.service: tests run between rounds in the service 'main' only",)),
    ],
)  # fmt: skip
def test_users_that_cannot_talk_are_reasons_with_their_key(make_document, yaml, expected):
    assert reasons(make_document, yaml) == expected


@pytest.mark.parametrize(
    ("yaml", "loop", "expected"),
    [
        ("version: '1.3'", "verify-retry", ()),
        ("user: {}", "verify-retry", ("user: a loop does not go together with the user of a task; leave --loop out",)),
        ("user: {}", "single-shot", ()),
        (ONE_ROLE, "self-review", ("scenes: a loop is not run over roles and scenes; leave --loop out",)),
        ("verifier: {sandbox_mode: separate}", "self-review", ()),
        ("verifier: {sandbox_mode: separate}", "verify-retry", ("verifier.sandbox: tests in a sandbox of their own cannot run between rounds",)),
    ],
)  # fmt: skip
def test_loops_that_cannot_be_run_are_reasons(make_document, yaml, loop, expected):
    assert reasons(make_document, yaml, loop=loop) == expected
    assert reasons(make_document, yaml, "oracle", loop=loop) == ()


def test_user_of_the_job_stands_in_for_one_that_cannot_talk(make_document):
    assert reasons(make_document, "user: {model: claude-x}", user="patient") == ()


def test_user_of_the_job_goes_with_no_loop(make_document):
    assert reasons(make_document, "user: {}", user="patient", loop="self-review") == (
        "user: a user does not go together with a loop; give one of the two",
    )


def test_steps_go_with_no_loop(make_task):
    folder = make_task({
        "task.toml": '[[steps]]\nname = "a"\n',
        "steps/a/instruction.md": "Do a.\n",
        "steps/a/tests/test.sh": "true\n",
    })
    job = JobSpec.model_validate({"tasks": "tasks", "agent": "./a.sh", "loop": "self-review"})

    assert unplayable(read_task(folder), AgentSpec(name="./a.sh"), job) == (
        "steps: steps do not go together with a loop or a user",
    )


@pytest.mark.parametrize(
    ("yaml", "rounds"),
    [
        ("user: {}", 5),
        ("user: {stop_rule: satisfied-or-9-rounds}", 9),
        ("user: {stop_rule: satisfied-or-9-rounds}\nbenchflow: {nudges: {nudge_budget: 4}}", 4),
        ("user: {}\nbenchflow: {nudges: {nudge_budget: 40}}", 5),
    ],
)
def test_rounds_are_the_fewer_of_rule_and_budget(make_document, yaml, rounds):
    assert most_rounds(read_task(make_document(f"---\n{yaml}\n---\nDo it.\n"))) == rounds
