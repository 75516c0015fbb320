"""Only names travel; values are found on the worker, and remembered as secrets."""

from __future__ import annotations

import pytest

from benchflow_client.errors import AgentError
from benchflow_workers.trial.variables import resolve_agent_env, resolve_templates, secret_values

ENVIRON = {"API_KEY": "k-123456", "EMPTY": ""}


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("plain", "plain"),
        ("${API_KEY}", "k-123456"),
        ("${EMPTY}", ""),
        ("${MISSING:-fallback}", "fallback"),
        ("${MISSING:-}", ""),
        ("${API_KEY:-fallback}", "k-123456"),
        ("${MISSING:-two\nlines}", "two\nlines"),
        ("prefix ${API_KEY}", "prefix ${API_KEY}"),
        ("${API_KEY} ", "${API_KEY} "),
        ("${1BAD}", "${1BAD}"),
        ("$API_KEY", "$API_KEY"),
    ],
)
def test_only_a_whole_value_is_a_template(value: str, resolved: str) -> None:
    assert resolve_templates({"X": value}, ENVIRON, place="verifier.env") == {"X": resolved}


def test_template_without_value_or_default_names_variable_and_place() -> None:
    with pytest.raises(AgentError) as caught:
        resolve_templates({"KEY": "${NOT_SET}"}, ENVIRON, place="verifier.env")

    assert caught.value.code == "agent.env_missing"
    assert "verifier.env.KEY" in caught.value.message
    assert "NOT_SET" in caught.value.message
    assert "${NOT_SET:-value}" in caught.value.hint


def test_agent_gets_names_from_the_worker_and_settings_as_given() -> None:
    found = resolve_agent_env(("API_KEY", "MODE=fast", "OPTS=a=b", "NONE="), ENVIRON)

    assert found == {"API_KEY": "k-123456", "MODE": "fast", "OPTS": "a=b", "NONE": ""}


def test_last_of_two_variables_of_one_name_counts() -> None:
    assert resolve_agent_env(("API_KEY", "API_KEY=mine"), ENVIRON) == {"API_KEY": "mine"}


def test_agent_variable_that_the_worker_lacks_says_what_to_set() -> None:
    with pytest.raises(AgentError) as caught:
        resolve_agent_env(("NOT_SET",), ENVIRON)

    assert caught.value.code == "agent.env_missing"
    assert "NOT_SET" in caught.value.message
    assert "NOT_SET" in caught.value.hint


def test_variables_with_the_name_of_a_secret_are_secrets() -> None:
    table = {
        "MY_TOKEN": "value-of-token",
        "db_password": "value-of-password",
        "Authorization": "value-of-auth",
        "COLOUR": "not-a-secret",
    }

    assert secret_values(table, by_reference=(), environ={}) == {
        "value-of-token",
        "value-of-password",
        "value-of-auth",
    }


def test_agent_variable_by_name_is_a_secret_whatever_it_is_called() -> None:
    environ = {"PLAIN": "value-of-plain", "OTHER": "value-of-other"}

    found = secret_values({}, by_reference=("PLAIN", "OTHER=x", "MISSING"), environ=environ)

    assert found == {"value-of-plain"}


def test_value_too_short_to_be_told_from_text_is_left_alone() -> None:
    table = {"A_KEY": "12345", "B_KEY": "123456", "C_KEY": ""}

    assert secret_values(table, by_reference=(), environ={}) == {"123456"}
