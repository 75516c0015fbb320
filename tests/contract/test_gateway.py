"""The model gateway against a model server on the loopback: what passes, what is kept, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_client.catalog.providers import DIALECTS, Dialect
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import OwnPrice, Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Sampling, Target, Translation
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor

KEY = "the-real-" + "key-0123456789"
MODEL = "large-1"

BODIES: Mapping[Dialect, tuple[str, dict[str, Any]]] = {
    "openai-completions": (
        "/v1/chat/completions",
        {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    ),
    "openai-responses": ("/v1/responses", {"model": MODEL, "input": "hi"}),
    "anthropic-messages": (
        "/v1/messages",
        {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    ),
    "gemini-generate": (
        f"/v1beta/models/{MODEL}:generateContent",
        {"contents": [{"parts": [{"text": "hi"}]}]},
    ),
}
TOKEN_PLACES = ("Authorization", "x-api-key", "x-goog-api-key", "query")
CALLS = [(dialect, streamed) for dialect in DIALECTS for streamed in (False, True)]


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with scripted_models() as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Prices({MODEL: OwnPrice(input=2, output=10, cache_read=1)}))
    yield made
    made.close()


@pytest.fixture
def grant(models: ScriptedModels, tmp_path: Path) -> Grant:
    return granted_for(models, tmp_path)


def granted_for(models: ScriptedModels, folder: Path, **allowance: Any) -> Grant:
    urls: dict[Dialect, str] = {
        "openai-completions": models.url,
        "openai-responses": models.url,
        "anthropic-messages": models.host,
        "gemini-generate": models.host,
    }
    return Grant(
        target=Target("made-up", MODEL, urls, KEY),
        purse=Purse(Allowance(**allowance)),
        file=folder / "trajectory" / "llm_trajectory.jsonl",
        redactor=Redactor([KEY]),
    )


def request_of(dialect: Dialect, *, streamed: bool) -> tuple[str, dict[str, Any]]:
    path, body = BODIES[dialect]
    if dialect == "gemini-generate":
        return (path.replace(":generate", ":streamGenerate") + "?alt=sse", body) if streamed else (path, body)
    return path, {**body, "stream": True} if streamed else body


async def ask(
    gateway: Gateway, path: str, body: Any, token: str, *, place: str = "Authorization"
) -> tuple[int, str]:
    headers = {place: f"Bearer {token}" if place == "Authorization" else token} if place != "query" else {}
    query = {"key": token} if place == "query" else {}
    url = f"http://127.0.0.1:{gateway.port}{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=headers, params=query) as answer,
    ):
        return answer.status, await answer.text()


def recorded(grant: Grant) -> list[dict[str, Any]]:
    return [json.loads(line) for line in grant.file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(("dialect", "streamed"), CALLS)
async def test_a_call_passes_and_is_recorded(
    gateway: Gateway, models: ScriptedModels, grant: Grant, dialect: Dialect, streamed: bool
) -> None:
    path, body = request_of(dialect, streamed=streamed)
    assert gateway.port

    with gateway.granted(grant):
        status, text = await ask(gateway, path, body, grant.token)

    assert (status, models.script.text in text) == (200, True)
    (asked,) = models.asked
    assert asked.key == KEY
    assert grant.token not in json.dumps(asked.headers)
    (line,) = recorded(grant)
    assert (line["dialect"], line["status"], line["is_streamed"]) == (dialect, 200, streamed)
    assert line["tokens"] == {"input": 100, "output": 7, "cache_read": 10, "cache_write": 0, "reasoning": 0}
    assert line["cost_usd"] == pytest.approx((90 * 2 + 10 * 1 + 7 * 10) / 1e6)
    assert line["price_source"] == "own table"
    assert line["finish_reason"] in {"stop", "completed", "end_turn", "STOP"}
    assert line["request"] == body
    assert models.script.text in json.dumps(line["response"])
    assert line["time_to_first_byte_s"] <= line["latency_s"]
    usage = grant.usage()
    assert (usage.n_input_tokens, usage.n_output_tokens, usage.total_tokens) == (100, 7, 107)
    assert KEY not in grant.file.read_text()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_bytes_are_passed_as_they_are(
    gateway: Gateway, models: ScriptedModels, grant: Grant, dialect: Dialect, streamed: bool
) -> None:
    path, body = request_of(dialect, streamed=streamed)
    if dialect == "openai-completions" and streamed:
        body["stream_options"] = {"include_usage": True}
    direct = f"{models.host}{path}"
    async with aiohttp.ClientSession() as session, session.post(direct, json=body) as answer:
        expected = await answer.text()

    assert gateway.port
    with gateway.granted(grant):
        _, text = await ask(gateway, path, body, grant.token)

    assert text == expected
    assert models.asked[0].body == models.asked[1].body


async def test_a_stream_that_would_not_tell_its_usage_is_asked_to(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    path, body = request_of("openai-completions", streamed=True)
    assert gateway.port
    with gateway.granted(grant):
        await ask(gateway, path, body, grant.token)

    assert models.asked[0].body["stream_options"] == {"include_usage": True}
    assert (recorded(grant)[0]["added"], recorded(grant)[0]["request"]) == (["usage"], body)


@pytest.mark.parametrize("place", TOKEN_PLACES)
async def test_a_token_is_taken_wherever_a_client_puts_keys(
    gateway: Gateway, grant: Grant, place: str
) -> None:
    path, body = request_of("gemini-generate", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        status, _ = await ask(gateway, path, body, grant.token, place=place)

    assert status == 200


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_revoked_token_is_good_for_nothing(
    gateway: Gateway, models: ScriptedModels, grant: Grant, dialect: Dialect
) -> None:
    path, body = request_of(dialect, streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        pass
    status, text = await ask(gateway, path, body, grant.token)

    assert (status, models.asked) == (401, [])
    assert "good for nothing" in json.loads(text)["error"]["message"]


async def test_an_accounts_token_is_sent_as_one_with_the_headers_that_go_with_it(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    path, body = request_of("anthropic-messages", streamed=False)
    target = replace(grant.target, bearer={"anthropic-beta": "oauth-x"})
    about = replace(grant, target=target)
    assert gateway.port
    with gateway.granted(about):
        headers = {"x-api-key": about.token, "Anthropic-Beta": "tools-y"}
        url = f"http://127.0.0.1:{gateway.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            assert answer.status == 200

    (asked,) = models.asked
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["anthropic-beta"] == "tools-y,oauth-x"
    assert "x-api-key" not in asked.headers


async def test_headers_that_would_hide_what_a_call_used_are_not_passed_on(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    path, body = request_of("gemini-generate", streamed=False)
    hiding = {"X-Goog-FieldMask": "candidates", "X-HTTP-Method-Override": "GET", "x-litellm-tags": "a"}
    with gateway.granted(grant):
        headers = {"x-goog-api-key": grant.token, "X-Mine": "yes", **hiding}
        url = f"http://127.0.0.1:{gateway.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            assert answer.status == 200

    (asked,) = models.asked
    assert asked.headers["x-mine"] == "yes"
    assert not {name.lower() for name in hiding} & {name.lower() for name in asked.headers}


@pytest.mark.parametrize(
    "name", ["api_base", "Base_URL", "aws_region_name", "vertex_location", "mock_response"]
)
async def test_an_agent_does_not_tell_what_translates_its_calls_where_to_go(
    gateway: Gateway, models: ScriptedModels, grant: Grant, name: str
) -> None:
    path, body = request_of("openai-completions", streamed=False)
    translated = replace(grant, target=replace(grant.target, translation=Translation("made-up", ())))
    with gateway.granted(translated):
        refused, text = await ask(gateway, path, {**body, name: "x"}, grant.token)
        plain, _ = await ask(gateway, path, body, grant.token)

    assert (refused, plain, len(models.asked)) == (400, 200, 1)
    assert name.lower() in text


async def test_another_model_is_not_asked(gateway: Gateway, models: ScriptedModels, grant: Grant) -> None:
    path, body = request_of("anthropic-messages", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        status, text = await ask(gateway, path, {**body, "model": "dearer-1"}, grant.token)

    assert (status, models.asked) == (404, [])
    assert json.loads(text)["error"]["type"] == "not_found_error"
    assert "large-1" in text


async def test_calls_end_where_the_budget_does(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = granted_for(models, tmp_path, tokens=150)
    path, body = request_of("openai-completions", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        statuses = [(await ask(gateway, path, body, grant.token))[0] for _ in range(3)]

    assert statuses == [200, 200, 429]
    assert len(models.asked) == 2


async def test_all_turns_of_an_attempt_live_on_one_budget(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    first = granted_for(models, tmp_path, tokens=150)
    second = replace(granted_for(models, tmp_path), purse=first.purse)
    path, body = request_of("openai-completions", streamed=False)
    statuses = []
    for grant in (first, second):
        with gateway.granted(grant):
            statuses += [(await ask(gateway, path, body, grant.token))[0] for _ in range(2)]

    assert statuses == [200, 200, 429, 429]
    assert (first.usage().total_tokens, second.usage().total_tokens) == (214, 0)


async def test_a_busy_provider_is_asked_again_and_waits_as_it_says(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    models.script = Script(statuses=(429, 503), retry_after_s=0.1)
    path, body = request_of("openai-responses", streamed=True)
    assert gateway.port
    with gateway.granted(grant):
        status, _ = await ask(gateway, path, body, grant.token)

    assert (status, len(models.asked)) == (200, 3)
    assert recorded(grant)[0]["attempts"] == 3
    assert grant.statuses == {200: 1}


async def test_an_error_that_stays_is_the_agents_to_see(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    models.script = Script(statuses=(429, 401), retry_after_s=900)
    path, body = request_of("openai-completions", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        limited, text = await ask(gateway, path, body, grant.token)
        refused, _ = await ask(gateway, path, body, grant.token)

    assert (limited, refused, "scripted 429" in text) == (429, 401, True)
    assert grant.statuses == {429: 1, 401: 1}
    assert grant.usage().total_tokens == 0


@pytest.mark.parametrize("asked_s", [1e9, float("inf")])
async def test_a_provider_that_asks_to_wait_for_ever_is_asked_again_after_an_hour(
    gateway: Gateway, models: ScriptedModels, grant: Grant, asked_s: float
) -> None:
    models.script = Script(statuses=(429,), retry_after_s=asked_s)
    path, body = request_of("openai-completions", streamed=False)
    with gateway.granted(grant):
        status, _ = await ask(gateway, path, body, grant.token)

    assert (status, grant.wait_s) == (429, 3600)


async def test_a_provider_that_is_not_there_is_told(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    nowhere = Target("made-up", MODEL, {"openai-completions": "http://127.0.0.1:9/v1"}, None)
    grant = Grant(nowhere, Purse(Allowance()), tmp_path / "calls.jsonl", Redactor())
    path, body = request_of("openai-completions", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        status, text = await ask(gateway, path, body, grant.token)
        other, _ = await ask(gateway, *request_of("anthropic-messages", streamed=False), grant.token)

    assert (status, other) == (502, 404)
    assert "cannot be reached" in text
    assert recorded(grant)[0]["attempts"] == 4


async def test_a_stream_that_the_provider_cuts_is_cut_for_the_agent(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    models.script = Script(is_cut=True)
    path, body = request_of("anthropic-messages", streamed=True)
    assert gateway.port
    with gateway.granted(grant), pytest.raises(aiohttp.ClientError):
        await ask(gateway, path, body, grant.token)

    assert "broke off" in recorded(grant)[0]["error"]


async def test_tokens_nobody_told_are_unknown_and_not_nothing(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    models.script = Script(tells_usage=False)
    path, body = request_of("openai-completions", streamed=False)
    assert gateway.port
    with gateway.granted(grant):
        await ask(gateway, path, body, grant.token)

    usage = grant.usage()
    assert (usage.n_input_tokens, usage.total_tokens, usage.cost_usd) == (None, None, None)
    assert recorded(grant)[0]["cost_usd"] is None


@pytest.mark.parametrize("body", [[], "text", None])
async def test_a_body_that_is_no_object_is_refused(gateway: Gateway, grant: Grant, body: Any) -> None:
    assert gateway.port
    with gateway.granted(grant):
        status, _ = await ask(gateway, "/v1/chat/completions", body, grant.token)

    assert status == 400


async def test_models_are_listed_and_other_paths_are_not_passed_on(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    headers = {"x-api-key": grant.token}
    base = f"http://127.0.0.1:{gateway.port}"
    with gateway.granted(grant):
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{base}/v1/models") as answer:
                listed = await answer.json()
            async with session.head(base) as answer:
                alive = answer.status
            async with session.delete(f"{base}/v1/files/1") as answer:
                other = answer.status

    assert ([model["id"] for model in listed["data"]], alive, other) == ([MODEL], 200, 404)
    assert models.asked == []


@pytest.mark.parametrize(("dialect", "streamed"), CALLS)
async def test_what_a_job_asks_of_its_model_is_added_and_noted(
    gateway: Gateway, models: ScriptedModels, grant: Grant, dialect: Dialect, streamed: bool
) -> None:
    grant.target = replace(grant.target, sampling=Sampling(temperature=0.2))
    path, body = request_of(dialect, streamed=streamed)
    with gateway.granted(grant):
        status, _ = await ask(gateway, path, body, grant.token)

    (asked,) = models.asked
    sent = asked.body["generationConfig"] if dialect == "gemini-generate" else asked.body
    assert (status, sent["temperature"]) == (200, 0.2)
    (line,) = recorded(grant)
    assert line["request"] == body
    assert line["added"] == (["temperature", "usage"] if (dialect, streamed) == CALLS[1] else ["temperature"])
