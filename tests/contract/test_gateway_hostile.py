"""The model gateway and agents, or providers, that do not play fair: caps hold, sums are true, memory and disk are bounded."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_workers.gateway import grants
from benchflow_workers.gateway.grants import CAPPED_AT_ONCE, LARGE_AT_ONCE, Grant
from benchflow_workers.gateway.prices import OwnPrice, Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor

KEY = "the-real-" + "key-0123456789"
MODEL = "large-1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
MESSAGE = {**CHAT, "max_tokens": 9}


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with scripted_models() as server:
        yield server


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Prices({MODEL: OwnPrice(input=2, output=10)}))
    made.start()
    yield made
    made.close()


def grant_to(host: str, folder: Path, **allowance: Any) -> Grant:
    return Grant(
        target=Target(
            "made-up", MODEL, {"openai-completions": f"{host}/v1", "anthropic-messages": host}, KEY
        ),
        purse=Purse(Allowance(**allowance)),
        file=folder / "calls.jsonl",
        redactor=Redactor([KEY]),
    )


async def ask(
    gateway: Gateway, grant: Grant, body: Any, path: str = "/v1/chat/completions"
) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = f"http://127.0.0.1:{gateway.port}{path}"
    headers = {"x-api-key": grant.token, "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=io.BytesIO(data), headers=headers) as answer,
    ):
        return answer.status, await answer.text()


def recorded(grant: Grant) -> list[dict[str, Any]]:
    return [json.loads(line) for line in grant.file.read_text("utf-8").splitlines()]


@asynccontextmanager
async def answering(data: bytes) -> AsyncGenerator[tuple[str, asyncio.Queue[bytes]], None]:
    """A server that answers whatever comes with the same bytes; yields its address and what came."""
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        came.put_nowait(head)
        # A server that hangs up on a body it has not read may be heard as a connection that broke.
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came


@pytest.mark.parametrize("options", [{"include_usage": False}, {"include_usage": None}, None, "x"])
async def test_no_stream_hides_its_usage_from_a_cap(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, options: Any
) -> None:
    grant = grant_to(models.host, tmp_path, tokens=150)
    with gateway.granted(grant):
        body = {**CHAT, "stream": True, "stream_options": options}
        statuses = [(await ask(gateway, grant, body))[0] for _ in range(3)]

    assert statuses == [200, 200, 429]


async def test_calls_that_tell_no_usage_are_charged_by_their_size(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(tells_usage=False)
    grant = grant_to(models.host, tmp_path, tokens=1000)
    with gateway.granted(grant):
        body = {**CHAT, "messages": [{"role": "user", "content": "hi " * 2000}]}
        statuses = [(await ask(gateway, grant, body))[0] for _ in range(2)]

    assert statuses == [200, 429]
    assert grant.usage().total_tokens is None


@pytest.mark.parametrize("wrong", [-5, 10**30, "many", True, 1.5, [7]])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_usage_that_cannot_be_true_is_unknown_and_charged_by_size(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, wrong: Any, path: str
) -> None:
    models.script = Script(wrong_usage=wrong)
    grant = grant_to(models.host, tmp_path, tokens=1000)
    body = {**MESSAGE, "messages": [{"role": "user", "content": "hi " * 2000}]}
    with gateway.granted(grant):
        statuses = [(await ask(gateway, grant, body, path))[0] for _ in range(2)]

    assert statuses == [200, 429]
    assert (grant.usage().total_tokens, grant.usage().cost_usd) == (None, None)
    assert recorded(grant)[0]["tokens"] is None


async def test_calls_at_once_go_little_beyond_a_cap(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    models.script = Script(delay_s=0.2)
    grant = grant_to(models.host, tmp_path, tokens=50)
    with gateway.granted(grant):
        answers = await asyncio.gather(*(ask(gateway, grant, CHAT) for _ in range(5 * CAPPED_AT_ONCE)))

    assert len(models.asked) <= CAPPED_AT_ONCE
    assert {status for status, _ in answers} == {200, 429}


async def test_what_a_stream_told_before_it_was_cut_is_no_sum(gateway: Gateway, tmp_path: Path) -> None:
    event = {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"
    async with answering(head + b"data: " + json.dumps(event).encode() + b"\n\n") as (host, _):
        grant = grant_to(host, tmp_path)
        with gateway.granted(grant), pytest.raises(aiohttp.ClientError):
            await ask(gateway, grant, {**MESSAGE, "stream": True}, "/v1/messages")

    assert grant.usage().total_tokens is None
    assert recorded(grant)[0]["tokens"] is None


async def test_an_agent_that_gives_up_on_a_busy_provider_was_refused_by_it(
    gateway: Gateway, tmp_path: Path
) -> None:
    async with answering(b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n") as (host, came):
        grant = grant_to(host, tmp_path)
        with gateway.granted(grant):
            asking = asyncio.ensure_future(ask(gateway, grant, CHAT))
            for _ in range(2):
                await came.get()
            asking.cancel()
            await asyncio.wait({asking})
            await asyncio.to_thread(grant.wait_until_quiet, 60)

    assert grant.statuses == {429: 1}


async def test_an_answer_that_is_no_http_is_the_providers_failure(gateway: Gateway, tmp_path: Path) -> None:
    async with answering(b"SSH-2.0-banana\r\n\r\n") as (host, _):
        grant = grant_to(host, tmp_path)
        with gateway.granted(grant):
            status, _ = await ask(gateway, grant, CHAT)

    assert (status, grant.statuses) == (502, {502: 1})


async def test_a_key_is_not_sent_where_a_provider_points(gateway: Gateway, tmp_path: Path) -> None:
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (other, came):
        sent_on = f"HTTP/1.1 307 On\r\nLocation: {other}/\r\nContent-Length: 0\r\n\r\n".encode()
        async with answering(sent_on) as (host, _):
            grant = grant_to(host, tmp_path)
            with gateway.granted(grant):
                status, text = await ask(gateway, grant, MESSAGE, "/v1/messages")

    assert (status, came.qsize()) == (502, 0)
    assert other in text


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "dearer-1", "model": "large-1", "messages": []}',
        b'{"model": "large-1", "models": ["dearer-1"], "messages": []}',
    ],
    ids=["twice", "routed"],
)
async def test_no_other_model_is_asked_by_a_trick(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, body: bytes
) -> None:
    grant = grant_to(models.host, tmp_path)
    with gateway.granted(grant):
        status, _ = await ask(gateway, grant, body)

    assert (status, models.asked) == (400, [])


async def test_half_a_character_passes_through_a_stream_that_is_asked_for_its_usage(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models.host, tmp_path)
    with gateway.granted(grant):
        status, _ = await ask(gateway, grant, {**CHAT, "stream": True, "user": "\ud83d"})

    assert (status, models.asked[0].body["user"]) == (200, "\ud83d")


async def test_a_body_of_many_strings_is_masked_as_a_whole(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models.host, tmp_path)
    strings = ["abcdefgh", 'with "quotes"', "\n"] * 1000
    with gateway.granted(grant):
        await ask(gateway, grant, {**CHAT, "stop": [*strings, KEY]})

    assert recorded(grant)[0]["request"]["stop"] == [*strings, "[redacted]"]


async def test_a_mask_in_the_place_of_a_number_leaves_a_line_of_json(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models.host, tmp_path)
    with gateway.granted(grant):
        await ask(gateway, grant, {**CHAT, "max_token": 12345678901234567890})

    (line,) = recorded(grant)
    assert (line["request"], line["tokens"]["output"]) == (None, 7)


async def test_a_large_body_passes_and_is_recorded(gateway: Gateway, tmp_path: Path) -> None:
    async with answering(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}") as (host, _):
        grant = grant_to(host, tmp_path)
        body = {**CHAT, "user": "z" * (2 << 20)}
        with gateway.granted(grant):
            statuses = await asyncio.gather(*(ask(gateway, grant, body) for _ in range(2 * LARGE_AT_ONCE)))

    assert {status for status, _ in statuses} == {400}
    assert [line["request"] for line in recorded(grant)] == [body] * len(statuses)


async def test_records_have_an_end_and_numbers_stay(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models.host, tmp_path)
    grant.recorded_bytes = grants.RECORDED_BYTES
    with gateway.granted(grant):
        await ask(gateway, grant, CHAT)

    (line,) = recorded(grant)
    assert (line["request"], line["response"], line["tokens"]["output"]) == (None, None, 7)
    assert line["request_bytes"] == len(json.dumps(CHAT))
