"""Which calls reach their provider as they are, and what LiteLLM is told where they do not."""

from __future__ import annotations

import importlib.util

import pytest

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.dialect import DIALECTS, Dialect
from benchflow_workers.gateway.target import Target
from benchflow_workers.trial.models import target_of
from benchflow_workers.trial.translations import as_spoken
from tests.definitions import speaking

KEYS = {
    "OPENAI_API_KEY": "k-openai",
    "ANTHROPIC_API_KEY": "k-anthropic",
    "GEMINI_API_KEY": "k-gemini",
    "DEEPSEEK_API_KEY": "k-deepseek",
    "AZURE_API_KEY": "k-azure",
    "AZURE_RESOURCE": "mine",
}
BEDROCK = {"AWS_BEARER_TOKEN_BEDROCK": "k-aws", "AWS_DEFAULT_REGION": "eu-west-1"}
VERTEX = {
    "GOOGLE_APPLICATION_CREDENTIALS_JSON": '{"type": "service_account"}',
    "GOOGLE_CLOUD_PROJECT": "p1",
    "GOOGLE_CLOUD_LOCATION": "us-east5",
}
SPEC = AgentSpec(name="ready")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let LiteLLM seem to be there; nothing of it is run."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def told(target: Target | None) -> tuple[str, dict[str, str]]:
    assert target is not None
    assert target.translation is not None
    return target.translation.prefix, dict(target.translation.parameters)


@pytest.mark.parametrize("definition", [None, speaking("openai-responses", "openai-completions")])
def test_a_provider_that_speaks_the_agents_words_is_asked_as_it_is(
    definition: AgentDefinition | None,
) -> None:
    target = target_of("deepseek-chat", {}, KEYS)

    assert as_spoken(SPEC, definition, target) is target


@pytest.mark.parametrize(
    ("model", "spoken", "prefix", "base"),
    [
        ("deepseek-chat", "anthropic-messages", "custom_openai", "https://api.deepseek.com/v1"),
        ("gpt-5", "anthropic-messages", "openai", "https://api.openai.com/v1"),
        (
            "azure-foundry-openai/gpt-5",
            "gemini-generate",
            "openai",
            "https://mine.openai.azure.com/openai/v1",
        ),
        ("claude-opus-4", "openai-responses", "anthropic", "https://api.anthropic.com"),
        ("gemini-3", "openai-completions", "gemini", "https://generativelanguage.googleapis.com/v1beta"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_other_words_are_translated(model: str, spoken: Dialect, prefix: str, base: str) -> None:
    target = target_of(model, {}, KEYS)

    said = as_spoken(SPEC, speaking(spoken), target)

    assert told(said) == (prefix, {"api_base": base, "api_key": str(target.key)})
    assert said is not None
    assert (dict(said.urls), said.provider, said.model, said.key) == (
        {spoken: ""},
        target.provider,
        target.model,
        target.key,
    )


@pytest.mark.parametrize(
    ("protocol", "prefix", "path"),
    [
        ("", "custom_openai", "/v1"),
        ("openai-responses", "openai", "/v1"),
        ("gemini-generate", "gemini", "/v1/v1beta"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_server_of_ones_own_is_translated_for_by_what_it_speaks(
    protocol: str, prefix: str, path: str
) -> None:
    own = {"BENCHFLOW_PROVIDER_BASE_URL": "http://10.0.0.1/v1", "BENCHFLOW_PROVIDER_PROTOCOL": protocol}

    said = as_spoken(SPEC, speaking("anthropic-messages"), target_of("vllm/large-1", {}, own))

    assert told(said) == (prefix, {"api_base": f"http://10.0.0.1{path}", "api_key": "none"})


@pytest.mark.usefixtures("installed")
def test_clouds_are_reached_with_what_their_variables_hold() -> None:
    bedrock = as_spoken(SPEC, None, target_of("aws-bedrock/anthropic.claude-1", {}, BEDROCK))
    vertex = as_spoken(SPEC, None, target_of("google-vertex/gemini-3", {}, VERTEX))

    assert told(bedrock) == ("bedrock", {"api_key": "k-aws", "aws_region_name": "eu-west-1"})
    assert told(vertex) == (
        "vertex_ai",
        {
            "vertex_project": "p1",
            "vertex_location": "us-east5",
            "vertex_credentials": '{"type": "service_account"}',
        },
    )
    assert bedrock is not None
    assert (tuple(bedrock.urls), bedrock.model, bedrock.key) == (DIALECTS, "anthropic.claude-1", "k-aws")


@pytest.mark.parametrize("missing", [*VERTEX])
def test_what_a_cloud_lacks_is_named(missing: str) -> None:
    rest = {name: value for name, value in VERTEX.items() if name != missing}

    with pytest.raises(AgentError, match=missing) as caught:
        target_of("anthropic-vertex/claude-1", {}, rest)

    assert caught.value.code == "agent.env_missing"


def test_the_workers_key_of_a_cloud_goes_to_no_address_of_the_agents() -> None:
    elsewhere = {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "http://203.0.113.7"}

    with pytest.raises(AgentError, match="AWS_ENDPOINT_URL_BEDROCK_RUNTIME"):
        target_of("aws-bedrock/m", elsewhere, BEDROCK)
    given = target_of("aws-bedrock/m", {**elsewhere, "AWS_BEARER_TOKEN_BEDROCK": "mine"}, BEDROCK)

    assert given.translation is not None
    assert dict(given.translation.parameters) == {
        "api_key": "mine",
        "aws_region_name": "eu-west-1",
        "aws_bedrock_runtime_endpoint": "http://203.0.113.7",
    }


def test_keys_do_not_show_where_a_target_is_printed() -> None:
    assert "k-aws" not in repr(target_of("aws-bedrock/m", {}, BEDROCK))


def test_a_ready_agent_without_a_model_cannot_be_run() -> None:
    with pytest.raises(AgentError, match="needs a model"):
        as_spoken(SPEC, speaking("anthropic-messages"), None)
    assert as_spoken(SPEC, None, None) is None


@pytest.mark.parametrize(
    ("model", "said"),
    [("deepseek-chat", "which speaks openai-completions"), ("aws-bedrock/m", "whose words are its own")],
)
def test_what_translates_must_be_installed(monkeypatch: pytest.MonkeyPatch, model: str, said: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(AgentError) as caught:
        as_spoken(SPEC, speaking("anthropic-messages"), target_of(model, {}, {**KEYS, **BEDROCK}))

    assert caught.value.code == "agent.not_runnable"
    assert said in caught.value.message
    assert "pip install 'benchflow-workers[litellm]'" in caught.value.hint


@pytest.mark.usefixtures("installed")
def test_an_accounts_token_is_for_the_accounts_own_programs() -> None:
    target = target_of("claude-opus-4", {}, {"ANTHROPIC_AUTH_TOKEN": "token-1"})

    with pytest.raises(AgentError, match="no account's token"):
        as_spoken(SPEC, speaking("openai-responses"), target)
