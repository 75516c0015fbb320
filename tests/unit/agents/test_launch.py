"""A definition filled in for one turn: arguments, variables, files of the home folder."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.catalog.agent_table import READY
from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Launch
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.launch import started
from benchflow_workers.sandbox.network import NetworkPolicy

CLOSED = NetworkPolicy("no-network")
MODEL = {
    "BENCHFLOW_PROVIDER_MODEL": 'odd "name"\\',
    "BENCHFLOW_PROVIDER_BASE_URL": "http://127.0.0.1:1/v1",
    "BENCHFLOW_PROVIDER_API_KEY": "bf-token",
}
SIMPLE = AgentDefinition(
    name="tinker",
    install=InSandbox(script="true", command="tinker"),
    launch=Launch(
        arguments=("run", "$$5"), env={"MODE": "fast", "TINKER_URL": "${BENCHFLOW_PROVIDER_BASE_URL}"}
    ),
    with_effort=Launch(arguments=("--think", "${BENCHFLOW_REASONING_EFFORT}")),
    with_tools=Launch(arguments=("--tools", "${BENCHFLOW_MCP_CONFIG}")),
    without_web=Launch(env={"WEB": "off"}),
)


def context(definition: AgentDefinition | None = SIMPLE, **changes: Any) -> AgentContext:
    task = Task(
        name="fetch-note", form="task.toml", instruction="Work.", config=TaskConfig(), verifier_dir="tests",
        oracle_dir="solution", has_dockerfile=True, has_compose=False,
    )  # fmt: skip
    made = AgentContext(
        task=task, task_dir=Path(), spec=AgentSpec(name="tinker"), script=None, env=MODEL, oracle_env={},
        timeout_s=30, user="agent", prompts=("Work.",), definition=definition,
    )  # fmt: skip
    return replace(made, **changes)


def test_what_the_turn_has_decides_what_is_added() -> None:
    plain = started(context())
    whole = started(
        context(
            spec=AgentSpec(name="tinker", effort="high"),
            env={**MODEL, "BENCHFLOW_MCP_CONFIG": "/mcp.json"},
            network=CLOSED,
        )
    )

    assert plain.arguments == ("run", "$5")
    assert "WEB" not in plain.env
    assert whole.arguments == ("run", "$5", "--tools", "/mcp.json", "--think", "high")
    assert (whole.env["WEB"], whole.env["BENCHFLOW_REASONING_EFFORT"]) == ("off", "high")


def test_variables_of_the_job_come_before_those_of_the_definition() -> None:
    what = started(context(env={**MODEL, "MODE": "slow"}))

    assert (what.env["MODE"], what.env["TINKER_URL"]) == ("slow", "http://127.0.0.1:1/v1")


def test_a_mapping_of_what_the_job_does_not_have_is_left_out() -> None:
    assert "TINKER_URL" not in started(context(env={})).env


def test_a_definition_that_refers_to_nothing_is_refused() -> None:
    broken = SIMPLE.model_copy(update={"launch": Launch(arguments=("${NOT_THERE}",))})

    with pytest.raises(AgentError, match="NOT_THERE") as caught:
        started(context(broken))

    assert caught.value.code == "agent.not_runnable"


def test_an_agent_without_a_definition_is_refused() -> None:
    with pytest.raises(AgentError, match="does not say how"):
        started(context(None))


@pytest.mark.parametrize("definition", READY, ids=lambda one: one.name)
@pytest.mark.parametrize("is_web_open", [True, False])
def test_files_of_every_ready_made_agent_can_be_read_whatever_the_models_name(
    definition: AgentDefinition, is_web_open: bool
) -> None:
    effort = "high" if definition.takes_effort else None
    what = started(
        context(
            definition,
            spec=AgentSpec(name="a", effort=effort),
            network=NetworkPolicy() if is_web_open else CLOSED,
        )
    )

    for path, text in what.files.items():
        read = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
        assert read
        assert "bf-token" not in text
    assert "bf-token" not in " ".join((*what.arguments, *(what.later or ())))
    if definition.launch.files:
        assert {upload.target for upload in what.uploads()} == {
            f"/opt/benchflow/home/{path}" for path in what.files
        }
