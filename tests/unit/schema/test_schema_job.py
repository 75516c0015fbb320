"""What a job and its agents may be, and what is understood from short forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.base import Document, Record, utc_now
from benchflow_client.schema.job import JobSpec


def test_a_bare_name_is_an_agent() -> None:
    agent = AgentSpec.model_validate("oracle")

    assert agent == AgentSpec(name="oracle")
    assert (agent.is_script, agent.label) == (False, "oracle")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("./solve.sh", "solve"),
        ("agents/my.agent.py", "my.agent"),
        ("solve.py", "solve"),
        ("/opt/agent", "agent"),
        ("bin/.hidden", ".hidden"),
        ("folder/", "folder"),
    ],
)
def test_a_path_is_a_script_called_by_its_stem(name: str, label: str) -> None:
    agent = AgentSpec(name=name, model="m")

    assert (agent.is_script, agent.label) == (True, label)


def test_a_model_is_part_of_the_label_of_a_registered_agent() -> None:
    assert AgentSpec(name="oracle", model="gpt-9").label == "oracle@gpt-9"


@pytest.mark.parametrize("item", ["NAME", "NAME=", "NAME=a=b", "_x1=1"])
def test_a_variable_is_a_name_or_a_name_with_a_value(item: str) -> None:
    assert AgentSpec(name="oracle", env=(item,)).env == (item,)


@pytest.mark.parametrize("item", ["", "1A=2", "A B=1", "=x", "A-B"])
def test_other_forms_of_a_variable_are_refused_by_value(item: str) -> None:
    with pytest.raises(ValidationError, match="neither NAME nor NAME=VALUE") as caught:
        AgentSpec(name="oracle", env=(item,))

    assert repr(item) in str(caught.value)
    with pytest.raises(ValidationError, match="neither NAME nor NAME=VALUE"):
        JobSpec(tasks="t", agent=(AgentSpec(name="oracle"),), agent_env=(item,))


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_a_positive_finite_number(timeout_s: float) -> None:
    with pytest.raises(ValidationError):
        AgentSpec(name="oracle", timeout_s=timeout_s)


@pytest.mark.parametrize(
    "agent",
    ["oracle", ["oracle"], {"name": "oracle"}, [{"name": "oracle"}], AgentSpec(name="oracle"), ("oracle",)],
)
def test_one_agent_may_be_written_without_a_list(agent: object) -> None:
    assert JobSpec.model_validate({"tasks": "t", "agent": agent}).agent == (AgentSpec(name="oracle"),)


def test_one_glob_or_variable_may_be_written_without_a_list() -> None:
    spec = JobSpec.model_validate({
        "tasks": "t",
        "agent": "nop",
        "include": "a*",
        "exclude": "b*",
        "agent_env": "KEY",
    })

    assert (spec.include, spec.exclude, spec.agent_env) == (("a*",), ("b*",), ("KEY",))


def test_the_job_fills_in_what_an_agent_leaves_open() -> None:
    spec = JobSpec(
        tasks="t",
        agent=(
            AgentSpec(name="one"),
            AgentSpec(name="two", model="own", env=("KEY=own",), timeout_s=5, idle_timeout_s=0),
        ),
        model="shared",
        agent_env=("KEY=shared",),
        agent_timeout_s=60,
    )

    one, two = spec.resolved_agents()

    assert (one.model, one.env, one.timeout_s, one.idle_timeout_s) == ("shared", ("KEY=shared",), 60, 600)
    assert (two.model, two.env, two.timeout_s, two.idle_timeout_s) == ("own", ("KEY=shared", "KEY=own"), 5, 0)


def test_an_agent_of_a_protocol_is_named_by_its_path() -> None:
    (agent,) = JobSpec(tasks="t", agent="acp:bots/fixer").agent

    assert (agent.name, agent.protocol, agent.is_script, agent.label) == ("bots/fixer", "acp", True, "fixer")
    assert AgentSpec(name="fixer", protocol="acp").is_script
    assert AgentSpec(name="acp:fixer", model="m").model == "m"


@pytest.mark.parametrize(
    "wrong",
    [
        {"agent": []},
        {"tasks": ""},
        {"tries": 0},
        {"tries": 1001},
        {"concurrency": 0},
        {"limit": 0},
        {"timeout_multiplier": 0},
        {"sandbox": "moon"},
        {"sandbox_user": "Bad User"},
        {"max_attempts": 21},
        {"job_name": "../escape"},
        {"job_name": ".bundles"},
        {"job_name": "Upper"},
        {"job_name": "new\nline"},
        {"job_name": "line\n"},
        {"jobs_dir": ""},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_job_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"tasks": "t", "agent": "nop", **wrong})


def test_a_job_comes_back_from_json_as_it_was() -> None:
    spec = JobSpec(tasks="t", agent=(AgentSpec(name="./a.sh", env=("A=1",)),), tries=3, limit=2)

    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_what_users_write_is_strict_and_what_is_stored_reads_newer_versions() -> None:
    class Written(Record):
        a: int = 1

    class Stored(Document):
        a: int = 1

    with pytest.raises(ValidationError):
        Written.model_validate({"a": 1, "b": 2})
    assert Stored.model_validate({"a": 2, "b": 2, "schema_version": 9}).a == 2
    with pytest.raises(ValidationError):
        Stored().a = 3  # type: ignore[misc]


def test_now_knows_its_zone() -> None:
    assert str(utc_now().tzinfo) == "UTC"


def test_each_field_says_what_it_means() -> None:
    for model in (JobSpec, AgentSpec):
        assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_the_public_names_are_those_of_the_modules() -> None:
    import benchflow_client

    assert benchflow_client.JobSpec is JobSpec
    assert all(getattr(benchflow_client, name) is not None for name in benchflow_client.__all__)
    assert set(benchflow_client.__all__) == set(benchflow_client._PLACES)
    with pytest.raises(AttributeError, match="no attribute 'Jobspec'"):
        _ = benchflow_client.Jobspec
    assert benchflow_client.__version__ in (Path(__file__).parents[3] / "pyproject.toml").read_text()
