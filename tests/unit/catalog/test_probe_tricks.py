"""The tricks of the cheating agent as data, and the agents they are."""

from __future__ import annotations

import subprocess

import pytest

from benchflow_client.catalog.agents import find_agent, list_agents
from benchflow_client.catalog.probe import BASELINE, Trick, find_trick, list_tricks
from benchflow_client.errors import UnknownAgentError
from benchflow_workers.agents.probe import ProbeAgent
from benchflow_workers.agents.registry import agent_of


def test_the_trick_that_does_nothing_comes_first_and_the_others_by_name() -> None:
    names = [trick.name for trick in list_tricks()]

    assert names[0] == BASELINE
    assert names[1:] == sorted(set(names[1:]))
    assert {"conftest", "daemon-reward", "path-shims", "reward-early", "tests-link"} <= set(names)


@pytest.mark.parametrize("trick", list_tricks(), ids=lambda trick: trick.name)
def test_every_trick_says_what_it_tries_and_is_a_program_of_any_shell(trick: Trick) -> None:
    parsed = subprocess.run(["sh", "-n"], input=trick.script, text=True, capture_output=True, check=False)

    assert trick.text.endswith(".")
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_a_trick_is_an_agent_by_its_name_and_a_control() -> None:
    entry = find_agent("probe:conftest")

    assert (entry.name, entry.is_control) == ("probe:conftest", True)
    assert isinstance(agent_of("probe:conftest"), ProbeAgent)
    assert ProbeAgent().is_control
    assert ProbeAgent().runs_as_user
    assert "probe:TRICK" in [agent.name for agent in list_agents()]


def test_a_name_that_is_nearly_a_trick_is_told() -> None:
    with pytest.raises(UnknownAgentError, match="'conftests'") as caught:
        find_agent("probe:conftests")

    assert "Did you mean 'conftest'?" in caught.value.hint
    assert "`bench probe --list`" in caught.value.hint


def test_a_name_that_is_far_from_any_trick_gets_the_list() -> None:
    with pytest.raises(UnknownAgentError) as caught:
        find_trick("zzzzzz")

    assert caught.value.hint == "`bench probe --list` names all."
