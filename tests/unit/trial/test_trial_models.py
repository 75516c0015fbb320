"""From a model's name to where its calls go, with whose key."""

from __future__ import annotations

import pytest

from benchflow_client.errors import AgentError
from benchflow_workers.trial.models import target_of

WORKER = {"OPENAI_API_KEY": "the-workers-key", "DEEPSEEK_API_KEY": "another-key"}


def test_the_workers_key_goes_to_the_providers_address() -> None:
    target = target_of("deepseek-chat", {}, WORKER)

    assert (target.provider, target.model, target.key) == ("deepseek", "deepseek-chat", "another-key")
    assert target.urls == {"openai-completions": "https://api.deepseek.com/v1"}


def test_the_workers_key_goes_to_another_address_of_the_workers() -> None:
    target = target_of("openai/gpt-5", {}, {**WORKER, "OPENAI_BASE_URL": "http://10.0.0.1/v1"})

    assert (target.urls["openai-responses"], target.key) == ("http://10.0.0.1/v1", "the-workers-key")


def test_the_agents_key_counts_before_the_workers() -> None:
    assert target_of("openai/gpt-5", {"OPENAI_API_KEY": "mine"}, WORKER).key == "mine"


@pytest.mark.parametrize("model", ["openai/gpt-5", "vllm/large-1"])
def test_the_workers_key_goes_to_no_address_of_the_agents(model: str) -> None:
    """Whoever submits a job could have it sent anywhere else."""
    name = "OPENAI" if model.startswith("openai") else "BENCHFLOW_PROVIDER"
    worker = {f"{name}_API_KEY": "the-workers-key", f"{name}_BASE_URL": "http://10.0.0.1/v1"}
    elsewhere = {f"{name}_BASE_URL": "http://203.0.113.7/v1"}

    with pytest.raises(AgentError, match=f"{name}_BASE_URL") as caught:
        target_of(model, elsewhere, worker)
    given = target_of(model, {**elsewhere, f"{name}_API_KEY": "meant-for-it"}, worker)

    assert caught.value.code == "agent.env_missing"
    assert f"--agent-env {name}_API_KEY" in caught.value.hint
    assert given.key == "meant-for-it"


def test_a_key_that_the_worker_has_for_no_address_goes_where_the_agent_says() -> None:
    url = {"BENCHFLOW_PROVIDER_BASE_URL": "http://10.0.0.1:8000/v1"}

    assert target_of("vllm/large-1", url, {"BENCHFLOW_PROVIDER_API_KEY": "k"}).key == "k"


def test_a_server_of_the_agents_own_needs_no_key() -> None:
    url = {"BENCHFLOW_PROVIDER_BASE_URL": "http://10.0.0.1:8000/v1"}

    without = target_of("vllm/large-1", url, {})
    none = target_of(
        "vllm/large-1", {**url, "BENCHFLOW_PROVIDER_API_KEY": ""}, {"BENCHFLOW_PROVIDER_API_KEY": "k"}
    )

    assert (without.key, none.key) == (None, None)


@pytest.mark.parametrize(
    ("model", "worker", "missing"),
    [
        ("vllm/large-1", {}, "BENCHFLOW_PROVIDER_BASE_URL"),
        ("kimi-k2", {"KIMI_API_KEY": "k"}, "KIMI_BASE_URL"),
        ("gemini-2.5-pro", {"GEMINI_API_KEY": " "}, "GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("azure-foundry-openai/gpt-5", {"AZURE_API_KEY": "k"}, "AZURE_RESOURCE"),
    ],
)
def test_what_is_missing_is_named(model: str, worker: dict[str, str], missing: str) -> None:
    with pytest.raises(AgentError, match=missing) as caught:
        target_of(model, {}, worker)

    assert caught.value.code == "agent.env_missing"


def test_a_blank_variable_of_the_agent_takes_the_workers_away() -> None:
    worker = {**WORKER, "BENCHFLOW_PROVIDER_BASE_URL": "http://10.0.0.1/v1"}

    assert target_of("gpt-5", {}, worker).provider == "custom"
    assert target_of("gpt-5", {"BENCHFLOW_PROVIDER_BASE_URL": ""}, worker).provider == "openai"


def test_either_name_of_googles_key_will_do() -> None:
    keys = [target_of("gemini-2.5-pro", {}, {name: "k"}).key for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY")]

    assert keys == ["k", "k"]


def test_a_model_of_nobody_cannot_be_run() -> None:
    with pytest.raises(AgentError, match="opal-1") as caught:
        target_of("opal-1", {}, WORKER)

    assert caught.value.code == "agent.not_runnable"


@pytest.mark.parametrize(
    ("environ", "key", "bearer"),
    [
        ({"ANTHROPIC_API_KEY": "k"}, "k", None),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t"}, "t", {}),
        ({"ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_OAUTH_TOKEN": "o"}, "k", None),
        ({"CLAUDE_CODE_OAUTH_TOKEN": "o"}, "o", {"anthropic-beta": "oauth-2025-04-20"}),
    ],
)
def test_of_anthropics_credentials_the_first_counts(
    environ: dict[str, str], key: str, bearer: dict[str, str] | None
) -> None:
    target = target_of("claude-opus", {}, environ)

    assert (target.key, target.bearer) == (key, bearer)
