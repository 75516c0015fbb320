"""Which turns cannot be played, and why: known before anything is sent."""

from __future__ import annotations

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.tasks.playing import unplayable
from benchflow_client.tasks.read import read_task

SCRIPT = {"agents/critic.sh": "#!/bin/sh\n"}


def reasons(make_document, yaml: str, agent: str = "./solve.sh", body: str = "Do it.") -> tuple[str, ...]:
    return unplayable(read_task(make_document(f"---\n{yaml}\n---\n{body}\n", SCRIPT)), AgentSpec(name=agent))


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("version: '1.3'", ()),
        ("agents: {roles: {a: {agent: job}, b: {agent: agents/critic.sh}}}", ()),
        ("agents: {roles: {a: {agent: solve}}}", ()),
        ("agents: {roles: {a: {agent: job}, b: {agent: codex-x}}}", ("agents.roles.b.agent: this version has no agent 'codex-x'",)),
        ("agents: {roles: {a: {agent: job}, b: {agent: oracle}}}", ("agents.roles.b.agent: 'oracle' is a control, which plays no role",)),
        ("agents: {roles: {b: {agent: agents/critic.sh}}}", ("agents.roles: 'solve' plays none of them; they are played by agents/critic.sh",)),
        ("agents: {roles: {a: {agent: job, skills_dir: /x}}}", ("agents.roles.a.skills_dir: skills of a role are not placed by this version",)),
        ("agents: {roles: {a: {agent: job}}}\nscenes: [{skills_dir: /x}]", ("scenes[0].skills_dir: skills of a scene are not placed by this version",)),
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
