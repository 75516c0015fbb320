"""Spans of model calls as a collector gets them: names and numbers by the conventions, not a word of a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_client.catalog.providers import DIALECTS, Dialect
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import OwnPrice, Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.telemetry.base import Span
from benchflow_workers.telemetry.otlp import OtlpTelemetry
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor
from tests.collectors import Collector, Told, collector

KEY = "the-real-" + "key-0123456789"
MODEL = "large-1"
PROMPT = "a question nobody else may read"
ANSWER = "an answer nobody else may read"
MESSAGES = [{"role": "user", "content": PROMPT}]
BODIES: dict[Dialect, tuple[str, dict[str, Any]]] = {
    "openai-completions": ("/v1/chat/completions", {"model": MODEL, "messages": MESSAGES}),
    "openai-responses": ("/v1/responses", {"model": MODEL, "input": PROMPT}),
    "anthropic-messages": ("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": MESSAGES}),
    "gemini-generate": (
        f"/v1beta/models/{MODEL}:generateContent",
        {"contents": [{"parts": [{"text": PROMPT}]}]},
    ),
}


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with scripted_models(Script(text=ANSWER)) as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Prices({MODEL: OwnPrice(input=2, output=10, cache_read=1)}))
    made.start()
    yield made
    made.close()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def grant_to(models: ScriptedModels, folder: Path, span: Span) -> Grant:
    urls: dict[Dialect, str] = {
        "openai-completions": models.url,
        "openai-responses": models.url,
        "anthropic-messages": models.host,
        "gemini-generate": models.host,
    }
    target = Target("google", MODEL, urls, KEY)
    return Grant(target, Purse(Allowance()), folder / "calls.jsonl", Redactor([KEY]), span)


async def ask(gateway: Gateway, grant: Grant, path: str, body: Any) -> int:
    url = f"http://127.0.0.1:{gateway.port}{path}"
    async with (
        aiohttp.ClientSession(headers={"x-api-key": grant.token}) as session,
        session.post(url, json=body) as answer,
    ):
        await answer.read()
        return answer.status


async def spans_of(
    gateway: Gateway, models: ScriptedModels, folder: Path, *calls: tuple[str, dict[str, Any]]
) -> None:
    """Make the calls in one turn and hand their spans over."""
    telemetry = OtlpTelemetry("host/1")
    turn = telemetry.begin("turn", {"bf.job": "a-job", "bf.trial": "t1", "plain": 1, "missing": None})
    grant = grant_to(models, folder, turn)
    with gateway.granted(grant):
        for path, body in calls:
            await ask(gateway, grant, path, body)
    turn.end({"bf.outcome": "passed"})
    telemetry.close()


def split(seen: Collector) -> tuple[Told, list[Told]]:
    (turn,) = [span for span in seen.spans if not span.parent]
    return turn, seen.below(turn)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_is_a_span_below_its_turn(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path, dialect: Dialect
) -> None:
    await spans_of(gateway, models, tmp_path, BODIES[dialect])

    turn, (call,) = split(seen)
    operation = "generate_content" if dialect == "gemini-generate" else "chat"
    assert (call.name, call.is_request, call.is_error) == (f"{operation} {MODEL}", True, False)
    assert call.trace == turn.trace
    assert 0 < call.seconds <= turn.seconds
    told = dict(call.attributes)
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told.pop("gen_ai.response.finish_reasons")[0] in {"stop", "completed", "end_turn", "STOP"}
    assert told.pop("bf.call.cost_usd") == pytest.approx((90 * 2 + 10 * 1 + 7 * 10) / 1e6)
    assert told == {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": False,
        "gen_ai.response.model": MODEL,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 10,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": int(models.host.rpartition(":")[2]),
        "bf.job": "a-job",
        "bf.trial": "t1",
        "bf.call.attempts": 1,
        "bf.call.waited_s": 0.0,
        "bf.call.price_source": "own table",
    }


async def test_no_span_holds_a_word_of_prompt_or_answer_or_a_secret(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path
) -> None:
    await spans_of(gateway, models, tmp_path, *BODIES.values())

    sent = b"".join(seen.bodies)
    assert len(split(seen)[1]) == 4
    assert not any(text.encode() in sent for text in (PROMPT, ANSWER, KEY))


async def test_a_call_that_failed_says_how(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path
) -> None:
    models.script = Script(statuses=[400])
    await spans_of(gateway, models, tmp_path, BODIES["anthropic-messages"])

    _, (call,) = split(seen)
    assert (call.is_error, call.attributes["error.type"]) == (True, "400")
    assert call.attributes["http.response.status_code"] == 400
    assert "gen_ai.usage.input_tokens" not in call.attributes


async def test_what_a_provider_did_not_tell_stands_in_no_span(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path
) -> None:
    models.script = Script(tells_usage=False)
    await spans_of(gateway, models, tmp_path, BODIES["openai-completions"])

    _, (call,) = split(seen)
    absent = {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "bf.call.cost_usd", "error.type"}
    assert absent & call.attributes.keys() == set()


async def test_counting_tokens_is_no_call_to_a_model(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path
) -> None:
    _, body = BODIES["anthropic-messages"]
    await spans_of(gateway, models, tmp_path, ("/v1/messages/count_tokens", body))

    assert [span.name for span in seen.spans] == ["turn"]


async def test_a_name_a_provider_says_is_masked_and_short(
    gateway: Gateway, models: ScriptedModels, seen: Collector, tmp_path: Path
) -> None:
    """A server that echoes what it was sent must not put it into a span."""
    long = "m" * 5000
    telemetry = OtlpTelemetry("host/1")
    turn = telemetry.begin("turn", {})
    grants = [
        Grant(
            Target("custom", model, {"openai-completions": models.url}, KEY),
            Purse(Allowance()), tmp_path / "calls.jsonl", Redactor([KEY]), turn,
        )
        for model in (long, KEY)
    ]  # fmt: skip
    for grant in grants:
        with gateway.granted(grant):
            path, body = BODIES["openai-completions"]
            await ask(gateway, grant, path, {**body, "model": grant.target.model})
    turn.end({})
    telemetry.close()

    answered = [span.attributes["gen_ai.response.model"] for span in split(seen)[1]]
    assert answered == [long[:200], "[redacted]"]


def test_the_sender_is_named_as_the_standard_variables_say(
    seen: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "evaluations")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=night")
    telemetry = OtlpTelemetry("host/1")
    telemetry.begin("trial", {}).end({})
    telemetry.close()

    (resource,) = seen.resources
    assert resource["service.name"] == "evaluations"
    assert resource["service.instance.id"] == "host/1"
    assert resource["deployment.environment.name"] == "night"
    assert seen.paths == ["/v1/traces"]


def test_what_is_not_sampled_is_not_taken(seen: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = OtlpTelemetry("host/1")
    span = telemetry.begin("trial", {})

    assert not span.is_taken
    assert not span.begin("agent", {}).is_taken
    telemetry.close()
    assert seen.bodies == []


def test_only_the_first_end_of_a_span_counts(seen: Collector) -> None:
    telemetry = OtlpTelemetry("host/1")
    span = telemetry.begin("trial", {})
    span.end({"bf.outcome": "passed"})
    span.end({"bf.outcome": "errored"}, error="late")
    telemetry.close()
    telemetry.close()

    (told,) = seen.spans
    assert (told.attributes, told.is_error) == ({"bf.outcome": "passed"}, False)
    assert json.dumps(dict(told.attributes))
