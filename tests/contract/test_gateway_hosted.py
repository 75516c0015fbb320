"""What an agent without an open network may not ask of its model's provider: a search, a fetch, a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.testing_models import ScriptedModels
from benchflow_workers.trial.redact import Redactor

PATHS: dict[Dialect, tuple[str, dict[str, Any]]] = {
    "openai-completions": ("/v1/chat/completions", {"model": "large-1", "messages": []}),
    "openai-responses": ("/v1/responses", {"model": "large-1", "input": "hi"}),
    "anthropic-messages": ("/v1/messages", {"model": "large-1", "max_tokens": 9, "messages": []}),
    "gemini-generate": ("/v1beta/models/large-1:generateContent", {"contents": []}),
}
HOSTED: tuple[tuple[Dialect, dict[str, Any], str], ...] = (
    (
        "anthropic-messages",
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "web_search_20250305",
    ),
    ("anthropic-messages", {"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp_servers"),
    (
        "openai-responses",
        {"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]},
        "web_search",
    ),
    ("openai-responses", {"tools": [{"type": "mcp", "server_url": "https://x"}]}, "mcp"),
    ("openai-completions", {"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
    ("openai-completions", {"plugins": [{"id": "web"}]}, "plugins"),
    ("gemini-generate", {"tools": [{"googleSearch": {}}]}, "googleSearch"),
    ("gemini-generate", {"tools": [{"url_context": {}}]}, "url_context"),
    ("gemini-generate", {"tools": {"google_search": {}}}, "google_search"),
    ("gemini-generate", {"Tools": [{"enterpriseWebSearch": {}}]}, "enterpriseWebSearch"),
    (
        "gemini-generate",
        {"contents": [{"parts": [{"file_data": {"file_uri": "https://x/a.pdf"}}]}]},
        "file from an address",
    ),
    ("openai-completions", {"web_search_options": {}}, "web_search_options"),
    ("openai-completions", {"Web_Search_Options": {}}, "Web_Search_Options"),
    ("openai-completions", {"tools": [{"type": "openrouter:web_search"}]}, "openrouter:web_search"),
    (
        "openai-completions",
        {"tools": [{"type": "builtin_function", "function": {"name": "$web_search"}}]},
        "builtin_function",
    ),
    (
        "openai-completions",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "https://x/a.png"}}],
                }
            ]
        },
        "file from an address",
    ),
    (
        "openai-responses",
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
        "web_search",
    ),
    (
        "openai-responses",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "HTTPS://x/a.pdf"}]}]},
        "file from an address",
    ),
    (
        "anthropic-messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "content": [
                                {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}
                            ],
                        }
                    ],
                }
            ]
        },
        "file from an address",
    ),
)
ORDINARY: tuple[tuple[Dialect, dict[str, Any]], ...] = (
    (
        "anthropic-messages",
        {
            "mcp_servers": [],
            "tools": [{"name": "fetch", "input_schema": {"properties": {"url": {"type": "web_search"}}}}],
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "tool_use",
                            "id": "1",
                            "name": "fetch",
                            "input": {"source": {"type": "url", "url": "https://x"}},
                        }
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "search_result", "source": "https://x", "title": "x", "content": []}
                    ],
                },
            ],
        },
    ),
    (
        "openai-completions",
        {
            "plugins": [],
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
                }
            ],
        },
    ),
    (
        "gemini-generate",
        {"contents": [{"parts": [{"functionCall": {"args": {"fileUri": "https://x"}}}]}]},
    ),
)


@pytest.fixture
def grant(models: ScriptedModels, tmp_path: Path) -> Grant:
    urls: dict[Dialect, str] = {
        "openai-completions": models.url,
        "openai-responses": models.url,
        "anthropic-messages": models.host,
        "gemini-generate": models.host,
    }
    target = Target("made-up", "large-1", urls, "key")
    return Grant(target, Purse(Allowance()), tmp_path / "calls.jsonl", Redactor())


async def ask(gateway: Gateway, path: str, body: Any, token: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{gateway.port}{path}", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.parametrize(("dialect", "more", "name"), HOSTED)
async def test_without_an_open_network_a_model_gets_no_tool_that_reaches_the_internet(
    gateway: Gateway, models: ScriptedModels, grant: Grant, dialect: Dialect, more: dict[str, Any], name: str
) -> None:
    path, body = PATHS[dialect]
    closed, opened = replace(grant, is_web_open=False, token="bf-closed"), replace(grant, token="bf-open")
    with gateway.granted(closed), gateway.granted(opened):
        refused = await ask(gateway, path, {**body, **more}, closed.token)
        passed = await ask(gateway, path, {**body, **more}, opened.token)
        plain = await ask(gateway, path, body, closed.token)

    assert (refused[0], passed[0], plain[0]) == (403, 200, 200)
    assert name in json.loads(refused[1])["error"]["message"]
    assert len(models.asked) == 2


@pytest.mark.parametrize(("dialect", "more"), ORDINARY)
async def test_what_an_agent_says_of_addresses_is_passed_on(
    gateway: Gateway, grant: Grant, dialect: Dialect, more: dict[str, Any]
) -> None:
    path, body = PATHS[dialect]
    closed = replace(grant, is_web_open=False, token="bf-closed")
    with gateway.granted(closed):
        status, _ = await ask(gateway, path, {**body, **more}, closed.token)

    assert status == 200


async def test_a_key_that_stands_twice_but_for_its_case_is_refused(
    gateway: Gateway, models: ScriptedModels, grant: Grant
) -> None:
    path, body = PATHS["openai-completions"]
    with gateway.granted(grant):
        status, _ = await ask(gateway, path, {**body, "Model": "dearer-1"}, grant.token)

    assert (status, models.asked) == (400, [])
