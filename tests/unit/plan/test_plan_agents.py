"""What a job says of its agents becomes what workers need to start them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from benchflow_client.catalog.agent_table import CODEX_CLI, GEMINI
from benchflow_client.catalog.agents import AgentEntry
from benchflow_client.errors import JobSpecError
from benchflow_client.plan.agents import plan_agents
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Launch, Login, Npm
from benchflow_client.schema.plan import PlannedAgent

OWN = AgentDefinition(
    name="tinker",
    install=InSandbox(script="true", command="tinker"),
    needs_model=False,
    requires_env=("TINKER_KEY",),
)


def planned(value: Any, own: Mapping[str, AgentEntry] | None = None, **more: Any) -> PlannedAgent:
    spec = AgentSpec.model_validate(value).model_copy(update=more)
    (agent,), _ = plan_agents([spec], own or {}, staging=Path("unused"))
    return agent


def test_the_plan_holds_how_an_agent_is_started() -> None:
    agent = planned("codex-cli", model="gpt-5")

    assert agent.definition == CODEX_CLI
    assert agent.label == "codex-cli@gpt-5"


def test_an_alias_is_the_agent() -> None:
    assert planned("codex", model="gpt-5").spec.name == "codex-acp"
    assert planned("acp/codex", model="gpt-5").spec.name == "codex-acp"
    assert planned("acp:claude", model="opus").spec.name == "claude-agent-acp"


def test_a_version_in_the_name_is_the_one_that_is_installed() -> None:
    agent = planned("codex-cli@0.170.0", model="gpt-5")

    assert agent.definition is not None
    assert (agent.definition.version, agent.label) == ("0.170.0", "codex-cli@0.170.0@gpt-5")


def test_a_default_model_is_taken_where_the_job_names_none() -> None:
    assert planned("gemini").spec.model == GEMINI.default_model
    assert planned("gemini", model="gemini-3").spec.model == "gemini-3"


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("codex-cli", {}, "needs a model"),
        ("qwen", {"model": "m", "effort": "high"}, "cannot be asked for an effort"),
        ("oracle@2", {}, "has no versions"),
    ],
)
def test_what_an_agent_cannot_do_is_refused_before_anything_is_sent(
    name: str, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(JobSpecError, match=reason):
        planned(name, **more)


def test_variables_an_agent_needs_are_asked_for() -> None:
    own = {"tinker": AgentEntry.of(OWN)}

    with pytest.raises(JobSpecError, match="needs TINKER_KEY"):
        planned("tinker", own)
    assert planned("tinker", own, env=("TINKER_KEY",)).definition == OWN
    assert planned("tinker", own, model="gpt-5").definition == OWN


@pytest.mark.parametrize("name", ["codex-cli@", "codex-cli@-rf", "codex-cli@1 2"])
def test_a_version_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        AgentSpec.model_validate(name)


def test_a_script_with_an_at_sign_keeps_its_name() -> None:
    assert AgentSpec.model_validate("./mine@2.py").name == "./mine@2.py"
    assert AgentSpec.model_validate("acp:./mine@2.py").name == "./mine@2.py"


@pytest.mark.parametrize(
    "packages",
    [
        "file:/root/secrets",
        "git+ssh://host/x",
        "./x",
        "name",
        "name@file:/x",
        "https://host/x.tgz",
        "name@..",
        "--global@1",
    ],
)
def test_packages_come_from_the_registry_only(packages: str) -> None:
    with pytest.raises(ValidationError, match="NAME@VERSION"):
        Npm(packages=(packages,), argv=("bin/x",))


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_paths_of_a_definition_stay_below_their_folder(path: str) -> None:
    with pytest.raises(ValidationError, match="is not below"):
        Npm(packages=("name@1",), argv=(path,))
    with pytest.raises(ValidationError, match="is not below"):
        Launch(files={path: ""})
    with pytest.raises(ValidationError, match="is not below"):
        Login(detect=path, files=("x",), hosts=())
    if path:
        with pytest.raises(ValidationError, match="is not below"):
            Login(detect="x", files=("x",), variables={"TOKEN": path}, hosts=())


@pytest.mark.parametrize("table", [{"A=B": "x"}, {"": "x"}, {"A B": "x"}, {"A\nB": "x"}, {"A": "x\0"}])
def test_variables_of_a_definition_are_such(table: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="is no variable"):
        Launch(env=table)
