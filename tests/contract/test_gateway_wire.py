"""The model gateway between two connections: proxies, lengths, and records that are written beside the calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_workers.gateway.grants import Grant, Masks
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.testing_models import ScriptedModels
from benchflow_workers.trial.redact import Redactor

MODEL = "large-1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


def grant_to(host: str, folder: Path, redactor: Masks | None = None) -> Grant:
    target = Target("made-up", MODEL, {"openai-completions": f"{host}/v1"}, "key")
    return Grant(target, Purse(Allowance()), folder / "calls.jsonl", redactor or Redactor())


async def ask(gateway: Gateway, grant: Grant, body: Any) -> tuple[int, Mapping[str, str], bytes]:
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    async with (
        aiohttp.ClientSession(headers={"x-api-key": grant.token}) as session,
        session.post(url, json=body) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


def recorded(grant: Grant) -> list[dict[str, Any]]:
    return [json.loads(line) for line in grant.file.read_text("utf-8").splitlines()]


@asynccontextmanager
async def proxy() -> AsyncGenerator[tuple[str, list[bytes]], None]:
    """A proxy that answers for every host; yields its address and the first lines that came."""
    came: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        came.append(head.splitlines()[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came


async def test_calls_go_through_the_proxy_of_the_host(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy() as (address, came):
        monkeypatch.setenv("http_proxy", address)
        monkeypatch.setenv("no_proxy", "")
        grant = grant_to("http://provider.invalid", tmp_path)
        with gateway.granted(grant):
            status, _, _ = await ask(gateway, grant, CHAT)

    assert status == 200
    assert came == [b"POST http://provider.invalid/v1/chat/completions HTTP/1.1"]


async def test_a_query_that_would_hide_what_a_call_used_is_not_passed_on(
    gateway: Gateway, tmp_path: Path
) -> None:
    async with proxy() as (address, came):
        grant = grant_to(address, tmp_path)
        url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions?fields=a&$fields=b&mine=yes"
        headers = {"x-api-key": grant.token}
        with gateway.granted(grant):
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, json=CHAT, headers=headers) as answer,
            ):
                assert answer.status == 200

    assert came == [b"POST /v1/chat/completions?mine=yes HTTP/1.1"]


async def test_no_proxy_stands_before_a_host_that_is_excepted(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = models.host.replace("127.0.0.1", "localhost")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "localhost")
    grant = grant_to(host, tmp_path)
    with gateway.granted(grant):
        status, _, _ = await ask(gateway, grant, CHAT)

    assert (status, len(models.asked)) == (200, 1)


async def test_an_answer_tells_its_length_as_the_provider_did(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path
) -> None:
    grant = grant_to(models.host, tmp_path)
    with gateway.granted(grant):
        _, plain, body = await ask(gateway, grant, CHAT)
        _, streamed, _ = await ask(gateway, grant, {**CHAT, "stream": True})

    assert int(plain["Content-Length"]) == len(body)
    assert "Content-Length" not in streamed


@dataclass
class Stumbling:
    """Masks that fail at the records that hold a word."""

    word: bytes
    failed: list[bytes] = field(default_factory=list)

    def value(self, value: Any) -> Any:
        return value

    def bytes(self, data: bytes) -> bytes:
        if self.word in data:
            self.failed.append(data)
            raise ValueError("what nobody thought of")
        return data


async def test_a_call_that_cannot_be_recorded_leaves_the_others_their_records(
    gateway: Gateway, models: ScriptedModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    masks = Stumbling(b"odd")
    grant = grant_to(models.host, tmp_path, masks)
    users = ["first", "odd", "odd", "second", "third", "odd"]
    with gateway.granted(grant):
        await asyncio.gather(*(ask(gateway, grant, {**CHAT, "user": user}) for user in users))
    gateway.close()

    assert sorted(line["request"]["user"] for line in recorded(grant)) == ["first", "second", "third"]
    assert len(masks.failed) == 3
    assert [entry.getMessage() for entry in caplog.records].count("a call to a model was not recorded") == 3
    assert grant.usage().total_tokens == 6 * 107
