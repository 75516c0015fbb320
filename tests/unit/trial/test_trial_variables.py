"""Only names travel; values are found on the worker, and remembered as secrets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchflow_client.errors import AgentError
from benchflow_workers.trial.prepare import prepare
from benchflow_workers.trial.variables import resolve_agent_env, resolve_templates, secret_values
from tests.worlds import TurnAgent, World

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


SERVERS = """
[[environment.mcp_servers]]
name = "search"
url = "http://search:8000/mcp"
transport = "http"
tools = ["find"]
headers = {Authorization = "${SEARCH_TOKEN}"}
[[environment.mcp_servers]]
name = "files"
transport = "stdio"
command = "serve-files"
args = ["--root", "/app"]
env = {MODE = "${MODE:-read}"}
[[environment.mcp_servers]]
name = "old"
url = "http://old:8000/sse"
"""


def test_agent_finds_the_tasks_tool_servers_in_a_file_it_is_told_of(make: Callable[..., World]) -> None:
    world = make(toml=SERVERS)
    world.environ["SEARCH_TOKEN"] = "Bearer-of-search"

    prepared = prepare(world.attempt(), world.parts)

    (upload,) = [one for one in prepared.sandbox.uploads if one.target == "/opt/benchflow/mcp.json"]
    assert prepared.agent_context.env == {"BENCHFLOW_MCP_CONFIG": "/opt/benchflow/mcp.json"}
    assert json.loads(upload.content or b"") == {
        "mcpServers": {
            "search": {
                "type": "http",
                "url": "http://search:8000/mcp",
                "headers": {"Authorization": "Bearer-of-search"},
                "tools": ["find"],
            },
            "files": {"command": "serve-files", "args": ["--root", "/app"], "env": {"MODE": "read"}},
            "old": {"type": "sse", "url": "http://old:8000/sse"},
        }
    }
    assert prepared.secrets == {"Bearer-of-search"}


def test_tool_server_whose_variable_is_not_set_is_named(make: Callable[..., World]) -> None:
    world = make(toml=SERVERS)

    with pytest.raises(AgentError) as caught:
        prepare(world.attempt(), world.parts)

    assert caught.value.code == "agent.env_missing"
    assert "environment.mcp_servers.search.headers.Authorization" in caught.value.message


def test_control_is_told_of_no_tool_server(make: Callable[..., World]) -> None:
    world = make(toml=SERVERS, agent=TurnAgent(is_control=True))
    world.environ["SEARCH_TOKEN"] = "Bearer-of-search"

    targets = [one.target for one in prepare(world.attempt(), world.parts).sandbox.uploads]

    assert "/opt/benchflow/mcp.json" not in targets


def test_secret_of_the_worker_stays_one_under_a_name_that_tells_nothing(make: Callable[..., World]) -> None:
    toml = """
[environment.env]
PLACE = "${LAB_TOKEN}"
[solution.env]
OTHER = "${LAB_REGION}"
[[environment.setup_commands]]
command = "true"
[environment.setup_commands.env]
PLAIN = "${LAB_PASSWORD:-none}"
"""
    world = make(toml=toml)
    environ = {"LAB_TOKEN": "token-of-lab", "LAB_REGION": "region-of-lab", "LAB_PASSWORD": "word-of-lab"}
    world.environ.update(environ)

    assert prepare(world.attempt(), world.parts).secrets == {"token-of-lab", "word-of-lab"}
