"""What a job asks of its model stands in each call that does not say it itself, in the words of its dialect."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow_client.errors import AgentError
from benchflow_client.schema.dialect import Dialect
from benchflow_client.schema.job import JobSpec
from benchflow_workers.gateway.sampling import sampled
from benchflow_workers.gateway.target import Sampling
from benchflow_workers.trial.sampling import check_sampling_applies, sampling_of

ALL = Sampling(temperature=0.2, top_p=0.9, max_output_tokens=64)


@pytest.mark.parametrize(
    ("dialect", "provider", "added"),
    [
        ("openai-completions", "custom", {"temperature": 0.2, "top_p": 0.9, "max_tokens": 64}),
        ("openai-completions", "openai", {"temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 64}),
        ("openai-responses", "openai", {"temperature": 0.2, "top_p": 0.9, "max_output_tokens": 64}),
        ("anthropic-messages", "anthropic", {"temperature": 0.2, "top_p": 0.9, "max_tokens": 64}),
    ],
)
def test_what_is_not_said_is_added(dialect: Dialect, provider: str, added: dict[str, Any]) -> None:
    body, names = sampled(dialect, provider, {"model": "m"}, ALL)

    assert body == {"model": "m", **added}
    assert names == tuple(added)


@pytest.mark.parametrize("config", [None, {}, {"topK": 3}])
def test_googles_dialect_has_an_object_for_it(config: dict[str, Any] | None) -> None:
    asked = {"contents": []} if config is None else {"contents": [], "generationConfig": config}

    body, names = sampled("gemini-generate", "google", asked, ALL)

    assert body["generationConfig"] == {
        **(config or {}),
        "temperature": 0.2,
        "topP": 0.9,
        "maxOutputTokens": 64,
    }
    assert names == ("temperature", "topP", "maxOutputTokens")


def test_what_the_agent_says_stays() -> None:
    asked = {"temperature": 0, "top_p": None, "max_tokens": 8}

    body, names = sampled("openai-completions", "openai", asked, ALL)

    assert (body, names) == ({"temperature": 0, "top_p": 0.9, "max_tokens": 8}, ("top_p",))


def test_where_nothing_is_asked_the_body_is_the_same_object() -> None:
    asked = {"model": "m"}

    assert sampled("openai-responses", "openai", asked, Sampling())[0] is asked


def test_an_odd_body_is_left_to_the_provider() -> None:
    asked = {"generationConfig": "warm"}

    assert sampled("gemini-generate", "google", asked, ALL) == (asked, ())


def spec(**settings: Any) -> JobSpec:
    return JobSpec.model_validate({"tasks": "t", "agent": "nop", **settings})


def test_a_variable_of_the_agent_counts_before_the_job() -> None:
    env = {
        "BENCHFLOW_MODEL_TEMPERATURE": "0.7",
        "BENCHFLOW_MODEL_MAX_TOKENS": "99",
        "BENCHFLOW_MODEL_TOP_P": "",
    }

    assert sampling_of(spec(temperature=0.2, top_p=0.9), env) == Sampling(0.7, 0.9, 99)
    assert sampling_of(spec(), {}) == Sampling()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TEMPERATURE", "warm"),
        ("TEMPERATURE", "3"),
        ("TOP_P", "0"),
        ("MAX_TOKENS", "1.5"),
        ("MAX_TOKENS", "0"),
    ],
)
def test_a_variable_that_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(AgentError, match=f"BENCHFLOW_MODEL_{name}") as caught:
        sampling_of(spec(), {f"BENCHFLOW_MODEL_{name}": value})

    assert caught.value.code == "agent.not_runnable"


def test_what_cannot_be_set_is_refused() -> None:
    check_sampling_applies(Sampling(), "mine")
    with pytest.raises(AgentError, match="'mine' has no model behind the gateway"):
        check_sampling_applies(Sampling(temperature=0.0), "mine")
