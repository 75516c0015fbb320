"""Token ids and log probabilities through the model gateway: asked for, recorded, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Capture, Target
from benchflow_workers.testing_models import Script, ScriptedModels
from benchflow_workers.trial.redact import Redactor

MODEL = "large-1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
SHELL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
TOLD = {
    "prompt_token_ids": list(range(1, 101)),
    "token_ids": [201, 202, 203, 204, 205, 206, 207],
    "logprobs": [0.0, -0.125, -0.25, -0.375, -0.5, -0.625, -0.75],
    "unavailable": {},
}
FIELDS = ("prompt_token_ids", "token_ids", "logprobs")


def grant_to(models: ScriptedModels, folder: Path, capture: Capture) -> Grant:
    urls: dict[Dialect, str] = {"openai-completions": models.url, "anthropic-messages": models.host}
    target = Target("made-up", MODEL, urls, "key", capture=capture)
    return Grant(target, Purse(Allowance()), folder / "calls.jsonl", Redactor(["key"]))


async def ask(
    gateway: Gateway, grant: Grant, body: Any, path: str = "/v1/chat/completions"
) -> tuple[int, str]:
    url = f"http://127.0.0.1:{gateway.port}{path}"
    async with (
        aiohttp.ClientSession(headers={"x-api-key": grant.token}) as session,
        session.post(url, json=body) as answer,
    ):
        return answer.status, await answer.text()


def recorded(grant: Grant) -> list[dict[str, Any]]:
    return [json.loads(line) for line in grant.file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("tools", [[], [SHELL]])
async def test_tokens_are_asked_for_and_recorded(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, streamed: bool, tools: list[Any]
) -> None:
    models.script = Script(command="echo hello")
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    body = {**CHAT, "stream": streamed, "tools": tools}
    with gateway.granted(grant):
        status, _ = await ask(gateway, grant, body)

    assert status == 200
    (asked,) = models.asked
    assert (asked.body["logprobs"], asked.body["return_token_ids"]) == (True, True)
    (line,) = recorded(grant)
    assert line["token_capture"] == TOLD
    assert line["added"] == [*(["usage"] if streamed else []), "logprobs", "return_token_ids"]
    assert line["request"] == body
    (choice,) = line["response"]["choices"]
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == 7


async def test_nothing_is_asked_for_where_nobody_wants_tokens(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models, tmp_path, Capture.NOTHING)
    with gateway.granted(grant):
        await ask(gateway, grant, CHAT)

    assert models.asked[0].body == CHAT
    assert recorded(grant)[0]["token_capture"] is None


async def test_what_an_agent_asks_for_itself_is_not_added(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        await ask(gateway, grant, body)

    assert models.asked[0].body == body
    (line,) = recorded(grant)
    assert (line["added"], line["token_capture"]) == ([], TOLD)


async def test_other_providers_are_asked_for_log_probabilities_only(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models, tmp_path, Capture.LOGPROBS)
    with gateway.granted(grant):
        await ask(gateway, grant, CHAT)

    assert models.asked[0].body == {**CHAT, "logprobs": True}
    (line,) = recorded(grant)
    assert line["token_capture"]["logprobs"] == TOLD["logprobs"]
    assert line["token_capture"]["unavailable"] == dict.fromkeys(FIELDS[:2], "not_requested")


async def test_a_server_that_knows_no_token_ids_is_asked_for_less_and_remembered(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(unknown=["return_token_ids"])
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        statuses = [(await ask(gateway, grant, CHAT))[0] for _ in range(2)]

    assert statuses == [200, 200]
    assert [sorted({"logprobs", "return_token_ids"} & set(asked.body)) for asked in models.asked] == [
        ["logprobs", "return_token_ids"],
        ["logprobs"],
        ["logprobs"],
    ]
    for line in recorded(grant):
        assert line["added"] == ["logprobs"]
        assert line["token_capture"]["logprobs"] == TOLD["logprobs"]
        assert line["token_capture"]["unavailable"] == dict.fromkeys(FIELDS[:2], "provider_api_unsupported")
    assert grant.statuses == {200: 2}


async def test_a_server_that_refuses_all_of_it_gets_the_agents_own_words(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(unknown=["logprobs"])
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        status, _ = await ask(gateway, grant, CHAT)

    assert (status, models.asked[-1].body) == (200, CHAT)
    (line,) = recorded(grant)
    assert (line["added"], line["attempts"]) == ([], 3)
    assert line["token_capture"]["unavailable"] == dict.fromkeys(FIELDS, "provider_api_unsupported")


async def test_a_mistake_of_the_agents_is_answered_and_teaches_nothing(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(unknown=["nonsense"])
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        refused, text = await ask(gateway, grant, {**CHAT, "nonsense": 1})
        answered, _ = await ask(gateway, grant, CHAT)

    assert (refused, answered, "scripted 400" in text) == (400, 200, True)
    first, second = recorded(grant)
    assert first["token_capture"]["unavailable"] == dict.fromkeys(FIELDS, "request_failed")
    assert second["token_capture"] == TOLD


async def test_a_server_that_tells_nothing_is_said_not_to(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(tells_tokens=False)
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        await ask(gateway, grant, {**CHAT, "stream": True})

    assert recorded(grant)[0]["token_capture"]["unavailable"] == dict.fromkeys(FIELDS, "not_returned")


async def test_another_dialect_is_never_asked(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    body = {**CHAT, "max_tokens": 9}
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant):
        await ask(gateway, grant, body, "/v1/messages")

    assert models.asked[0].body == body
    (line,) = recorded(grant)
    assert line["token_capture"]["unavailable"] == dict.fromkeys(FIELDS, "provider_api_unsupported")
    assert grant.capture is Capture.TOKENS


async def test_half_a_stream_is_no_capture(gateway: Gateway, models: ScriptedModels, tmp_path: Path) -> None:
    models.script = Script(is_cut=True)
    grant = grant_to(models, tmp_path, Capture.TOKENS)
    with gateway.granted(grant), pytest.raises(aiohttp.ClientError):
        await ask(gateway, grant, {**CHAT, "stream": True})

    (line,) = recorded(grant)
    assert line["token_capture"]["token_ids"] is None
    assert line["token_capture"]["unavailable"] == dict.fromkeys(FIELDS, "request_failed")
