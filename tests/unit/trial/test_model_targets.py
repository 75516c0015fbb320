"""In which limits a model's calls count: by the names of model, provider and the key's variable, never by its value."""

from __future__ import annotations

import pytest

from benchflow_client.catalog.providers import buckets_of
from benchflow_workers.trial.models import target_of

OPENAI = {"OPENAI_API_KEY": "k-openai-1", "TEAM_KEY": "k-team-1"}


@pytest.mark.parametrize(
    ("model", "buckets"),
    [
        ("openai/gpt-5", ("provider:openai", "model:openai/gpt-5")),
        ("claude-opus-4", ("provider:anthropic", "model:claude-opus-4")),
        ("vllm/org/any", ("provider:vllm", "model:vllm/org/any")),
        ("of-nobody", ("model:of-nobody",)),
    ],
)
def test_a_model_counts_for_the_provider_its_name_means(model: str, buckets: tuple[str, ...]) -> None:
    assert buckets_of(model) == buckets


def test_calls_count_for_model_provider_and_key() -> None:
    account = target_of("openai/gpt-5", {}, OPENAI).account

    assert account.buckets == ("provider:openai", "model:openai/gpt-5", "key:OPENAI_API_KEY")
    assert account.name == "openai OPENAI_API_KEY api.openai.com"
    assert account.limits_cached


def test_two_keys_of_one_provider_are_two_accounts() -> None:
    first = target_of("google/gemini-3", {}, {"GEMINI_API_KEY": "k-1"}).account
    second = target_of("google/gemini-3", {}, {"GOOGLE_API_KEY": "k-2"}).account

    assert (first.buckets[-1], second.buckets[-1]) == ("key:GEMINI_API_KEY", "key:GOOGLE_API_KEY")
    assert first.name != second.name


def test_a_key_is_named_by_the_workers_variable_that_holds_it() -> None:
    handed_on = target_of("openai/gpt-5", {"OPENAI_API_KEY": "k-team-1"}, OPENAI).account
    brought = target_of("openai/gpt-5", {"OPENAI_API_KEY": "k-mine-1"}, OPENAI).account

    assert handed_on.buckets[-1] == "key:TEAM_KEY"
    assert brought.buckets == ("provider:openai", "model:openai/gpt-5")
    assert brought.name == "openai api.openai.com"


def test_servers_of_ones_own_are_accounts_by_their_host_without_what_logs_in() -> None:
    environ = {"BENCHFLOW_PROVIDER_BASE_URL": "http://ana:word-1@models.lan:8000/v1"}

    account = target_of("vllm/any", {}, environ).account

    assert account.name == "custom models.lan:8000"
    assert account.buckets == ("provider:vllm", "model:vllm/any")


def test_what_anthropic_reads_from_its_cache_is_not_limited() -> None:
    assert not target_of("anthropic/claude-opus-4", {}, {"ANTHROPIC_API_KEY": "k"}).account.limits_cached
