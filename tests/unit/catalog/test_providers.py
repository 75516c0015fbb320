"""From the name of a model to its provider."""

from __future__ import annotations

import pytest

from benchflow_client.catalog.providers import PROVIDERS, find_route, known_variables
from benchflow_client.errors import UsageError

OWN = {"BENCHFLOW_PROVIDER_BASE_URL": "http://10.0.0.1:8000/v1/"}


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("gpt-5.1-codex", "openai", "gpt-5.1-codex"),
        ("o3", "openai", "o3"),
        ("claude-sonnet-4-6", "anthropic", "claude-sonnet-4-6"),
        ("gemini-2.5-flash", "google", "gemini-2.5-flash"),
        ("google/gemini-2.5-flash", "google", "gemini-2.5-flash"),
        ("openrouter/meta/llama-4", "openrouter", "meta/llama-4"),
        ("deepseek-chat", "deepseek", "deepseek-chat"),
        ("qwen3-max", "qwen-dashscope", "qwen3-max"),
        ("Kimi-k2", "kimi", "Kimi-k2"),
        ("doubao-seed-2-lite-250828", "doubao-seed-2-lite", "doubao-seed-2-lite-250828"),
        ("doubao-seed-2-pro", "doubao-seed-2-pro", "doubao-seed-2-pro"),
        ("vllm/qwen3", "custom", "qwen3"),
        ("vllm/org/large", "custom", "org/large"),
    ],
)
def test_a_model_is_found_by_prefix_or_family(model: str, provider: str, name: str) -> None:
    route = find_route(model, {})

    assert (route.provider.name, route.model) == (provider, name)


@pytest.mark.parametrize("model", ["opal-1", "gptx", "openia/gpt-5", "", "/"])
def test_a_model_of_nobody_is_refused_with_what_there_is(model: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_route(model, {})

    assert "BENCHFLOW_PROVIDER_BASE_URL" in caught.value.hint
    assert ("Did you mean openai/gpt-5?" in caught.value.hint) == (model == "openia/gpt-5")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("vllm/large-1", "large-1"),
        ("sglang/large-1", "large-1"),
        ("large-1", "large-1"),
        ("openai/gpt-5", "gpt-5"),
        ("org/large", "org/large"),
    ],
)
def test_an_address_of_the_users_own_takes_every_model(model: str, name: str) -> None:
    route = find_route(model, OWN)

    assert (route.provider.name, route.model) == ("custom", name)
    assert route.provider.url("openai-completions", OWN) == "http://10.0.0.1:8000/v1"


def test_an_address_of_the_users_own_may_speak_another_dialect() -> None:
    route = find_route("large-1", {**OWN, "BENCHFLOW_PROVIDER_PROTOCOL": "anthropic-messages"})
    assert set(route.provider.urls) == {"anthropic-messages"}

    with pytest.raises(UsageError, match="smoke"):
        find_route("large-1", {**OWN, "BENCHFLOW_PROVIDER_PROTOCOL": "smoke"})


def test_addresses_take_their_variables() -> None:
    provider = find_route("azure-foundry-openai/gpt-5", {}).provider

    assert provider.variables == ("AZURE_RESOURCE",)
    assert (
        provider.url("openai-responses", {"AZURE_RESOURCE": "mine"})
        == "https://mine.openai.azure.com/openai/v1"
    )
    with pytest.raises(KeyError):
        provider.url("openai-responses", {})


@pytest.mark.parametrize(
    ("provider", "variable", "default"),
    [
        ("openai", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
        ("deepseek", "DEEPSEEK_BASE_URL", "https://api.deepseek.com/v1"),
        ("openrouter", "OPENROUTER_BASE_URL", "https://openrouter.ai/api/v1"),
    ],
)
def test_known_addresses_may_be_others(provider: str, variable: str, default: str) -> None:
    entry = PROVIDERS[provider]

    assert entry.url("openai-completions", {}) == default
    assert entry.url("openai-completions", {variable: "http://10.0.0.1/v1/"}) == "http://10.0.0.1/v1"


@pytest.mark.parametrize(
    ("endpoint", "resource"),
    [
        ("https://mine.openai.azure.com/", "mine"),
        ("https://mine.services.ai.azure.com/api/projects/p", "mine"),
        ("https://mine.cognitiveservices.azure.com", "mine"),
        ("https://mine.openai.azure.com.example.org", None),
        ("mine", None),
        ("https://[", None),
    ],
)
def test_an_azure_endpoint_tells_its_resource(endpoint: str, resource: str | None) -> None:
    assert known_variables({"AZURE_API_ENDPOINT": endpoint}).get("AZURE_RESOURCE") == resource


def test_a_resource_that_is_named_counts_and_blank_values_do_not() -> None:
    given = {
        "AZURE_RESOURCE": " named ",
        "AZURE_API_ENDPOINT": "https://mine.openai.azure.com",
        "ZAI_API_KEY": " ",
        "X": "",
    }

    known = known_variables(given)

    assert known["AZURE_RESOURCE"] == "named"
    assert not {"ZAI_API_KEY", "X"} & known.keys()


def test_a_coding_plan_speaks_three_dialects() -> None:
    urls = {dialect: PROVIDERS["zai-coding"].url(dialect, {}) for dialect in PROVIDERS["zai-coding"].urls}

    assert urls == {
        "openai-completions": "https://api.z.ai/api/coding/paas/v4",
        "openai-responses": "https://api.z.ai/api/coding/paas/v4",
        "anthropic-messages": "https://api.z.ai/api/anthropic",
    }


def test_every_provider_has_addresses_and_a_key() -> None:
    for provider in PROVIDERS.values():
        assert bool(provider.urls) != bool(provider.translated)
        assert provider.key_env
