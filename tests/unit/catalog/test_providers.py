"""From the name of a model to its provider."""

from __future__ import annotations

import pytest

from benchflow_client.catalog.providers import PROVIDERS, find_route
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
        ("large-1", "large-1"),
        ("openai/gpt-5", "gpt-5"),
        ("org/large", "org/large"),
    ],
)
def test_an_address_of_the_users_own_takes_every_model(model: str, name: str) -> None:
    route = find_route(model, OWN)

    assert (route.provider.name, route.model) == ("custom", name)
    assert route.url("openai-completions", OWN) == "http://10.0.0.1:8000/v1"


def test_an_address_of_the_users_own_may_speak_another_dialect() -> None:
    route = find_route("large-1", {**OWN, "BENCHFLOW_PROVIDER_PROTOCOL": "anthropic-messages"})
    assert set(route.provider.urls) == {"anthropic-messages"}

    with pytest.raises(UsageError, match="smoke"):
        find_route("large-1", {**OWN, "BENCHFLOW_PROVIDER_PROTOCOL": "smoke"})


def test_addresses_take_their_variables() -> None:
    route = find_route("azure-foundry-openai/gpt-5", {})

    assert route.provider.variables == ("AZURE_RESOURCE",)
    assert (
        route.url("openai-responses", {"AZURE_RESOURCE": "mine"}) == "https://mine.openai.azure.com/openai/v1"
    )
    with pytest.raises(KeyError):
        route.url("openai-responses", {})


def test_every_provider_has_addresses_and_a_key() -> None:
    for provider in PROVIDERS.values():
        assert provider.urls
        assert provider.key_env
