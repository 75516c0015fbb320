"""Calls in one dialect reach a provider that speaks another, through LiteLLM; the gateway counts them as any other."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.dialect import DIALECTS, Dialect
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import OwnPrice, Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.gateway.translator import Translators
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from benchflow_workers.trial.models import target_of
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.translations import as_spoken
from tests.definitions import speaking

pytestmark = pytest.mark.litellm

KEY = "the-real-" + "key-0123456789"
MODEL = "org/large-1"
SPEC = AgentSpec(name="any")
HI = [{"role": "user", "content": "hi"}]
BODIES: Mapping[Dialect, tuple[str, dict[str, Any]]] = {
    "openai-completions": ("/v1/chat/completions", {"messages": HI}),
    "openai-responses": ("/v1/responses", {"input": "hi"}),
    "anthropic-messages": ("/v1/messages", {"max_tokens": 99, "messages": HI}),
    "gemini-generate": (
        "/v1beta/models/{}:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    ),
}
OTHERS = [(dialect, streamed) for dialect in DIALECTS[1:] for streamed in (False, True)]


@pytest.fixture(scope="module")
def models() -> Iterator[ScriptedModels]:
    with scripted_models() as server:
        yield server


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translators]:
    made = Translators(tmp_path_factory.mktemp("translators"), os.environ)
    yield made
    made.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = Gateway(Prices(dict.fromkeys((MODEL, "large-1"), OwnPrice(input=2, output=10, cache_read=1))))
    yield made
    made.close()


def granted(target: Target | None, translators: Translators, folder: Path) -> Grant:
    """Return a grant to what translates calls to a target, as an agent with a model has it."""
    assert target is not None
    assert target.translation is not None
    running = translators.running(target.translation)
    urls = {
        dialect: f"{running.url}/v1" if dialect.startswith("openai") else running.url for dialect in DIALECTS
    }
    place = replace(target, urls=urls, key=running.key)
    return Grant(place, Purse(Allowance()), folder / "calls.jsonl", Redactor([KEY]))


def request_of(dialect: Dialect, model: str, *, streamed: bool = False) -> tuple[str, dict[str, Any]]:
    path, body = BODIES[dialect]
    if dialect == "gemini-generate":
        path = path.format(model)
        return (path.replace(":generate", ":streamGenerate") + "?alt=sse" if streamed else path), body
    return path, {"model": model, "stream": streamed, **body}


async def ask(gateway: Gateway, grant: Grant, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
    headers = {"x-api-key": grant.token}
    url = f"http://127.0.0.1:{gateway.port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.text()


def recorded(grant: Grant) -> dict[str, Any]:
    return dict(json.loads(grant.file.read_text("utf-8").splitlines()[-1]))


def chat_only(models: ScriptedModels, model: str = MODEL) -> Target:
    environ = {
        "BENCHFLOW_PROVIDER_BASE_URL": models.url,
        "BENCHFLOW_PROVIDER_API_KEY": KEY,
        "BENCHFLOW_PROVIDER_PROTOCOL": "openai-completions",
    }
    return target_of(f"vllm/{model}", {}, environ)


@pytest.mark.parametrize(("dialect", "streamed"), OTHERS)
async def test_a_server_of_chat_completions_is_asked_in_other_words(
    gateway: Gateway,
    models: ScriptedModels,
    translators: Translators,
    tmp_path: Path,
    dialect: Dialect,
    streamed: bool,
) -> None:
    models.script, before = Script(), len(models.asked)
    model = (
        MODEL.rpartition("/")[2] if dialect == "gemini-generate" else MODEL
    )  # its paths have no room for more
    grant = granted(as_spoken(SPEC, speaking(dialect), chat_only(models, model)), translators, tmp_path)

    with gateway.granted(grant):
        status, text = await ask(gateway, grant, *request_of(dialect, model, streamed=streamed))

    assert (status, models.script.text in text) == (200, True), text
    (asked,) = models.asked[before:]
    assert (asked.path, asked.key, asked.body["model"]) == ("/v1/chat/completions", KEY, model)
    usage, line = grant.usage(), recorded(grant)
    assert (usage.n_input_tokens, usage.n_output_tokens, usage.total_tokens) == (100, 7, 107)
    assert (line["dialect"], line["provider"], line["status"]) == (dialect, "custom", 200)
    assert usage.cost_usd is not None
    assert KEY not in grant.file.read_text()


async def test_tools_are_called_in_the_agents_words(
    gateway: Gateway, models: ScriptedModels, translators: Translators, tmp_path: Path
) -> None:
    models.script = Script(command="echo done > out.txt")
    grant = granted(as_spoken(SPEC, speaking("anthropic-messages"), chat_only(models)), translators, tmp_path)
    tool = {
        "name": "bash",
        "description": "Run a command.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
    path, body = request_of("anthropic-messages", MODEL)

    with gateway.granted(grant):
        _, first = await ask(gateway, grant, path, {**body, "tools": [tool]})
        call = json.loads(first)["content"][-1]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        turns = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        _, second = await ask(gateway, grant, path, {**body, "tools": [tool], "messages": turns})

    assert (call["type"], call["name"], call["input"]) == (
        "tool_use",
        "bash",
        {"command": "echo done > out.txt"},
    )
    assert json.loads(second)["content"] == [{"type": "text", "text": "All done."}]
    assert grant.usage().total_tokens == 214


@pytest.mark.parametrize("status", [400, 401])
async def test_what_the_provider_refuses_is_the_agents_to_see(
    gateway: Gateway, models: ScriptedModels, translators: Translators, tmp_path: Path, status: int
) -> None:
    models.script = Script(statuses=[status] * (len(models.asked) + 1))
    grant = granted(as_spoken(SPEC, speaking("anthropic-messages"), chat_only(models)), translators, tmp_path)

    with gateway.granted(grant):
        answered, text = await ask(gateway, grant, *request_of("anthropic-messages", MODEL))

    assert (answered, dict(grant.statuses)) == (status, {status: 1})
    assert KEY not in text


async def test_nobody_else_is_answered(
    gateway: Gateway, models: ScriptedModels, translators: Translators, tmp_path: Path
) -> None:
    """The port is the host's: what translates takes the gateway's key and no other."""
    grant = granted(as_spoken(SPEC, speaking("anthropic-messages"), chat_only(models)), translators, tmp_path)
    url = f"{grant.target.urls['openai-completions']}/chat/completions"
    _, body = request_of("openai-completions", MODEL)
    before, statuses = len(models.asked), []
    for headers in ({}, {"Authorization": f"Bearer {KEY}"}):
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            statuses.append(answer.status)

    assert min(statuses) >= 400
    assert len(models.asked) == before


@dataclass
class Cloud:
    """A server that answers as two clouds do.

    Attributes:
        asked: Path and authorization of each request.
    """

    asked: list[tuple[str, str]] = field(default_factory=list)
    host: str = ""

    def answer(self, path: str) -> Mapping[str, Any]:
        if path == "/token":
            return {"access_token": "short-lived", "expires_in": 3600, "token_type": "Bearer"}
        said = [{"type": "text", "text": "All done."}]
        usage = {"input_tokens": 90, "output_tokens": 7, "cache_read_input_tokens": 10}
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": said,
            "stop_reason": "end_turn", "usage": usage,
        }  # fmt: skip


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    running = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            running.asked.append((self.path, self.headers.get("Authorization", "")))
            body = json.dumps(running.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.host = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield running
    server.shutdown()
    server.server_close()
    thread.join()


def service_account(cloud: Cloud) -> str:
    """Return the credentials of an account whose tokens the server gives."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps({
        "type": "service_account", "project_id": "p1", "private_key_id": "k1", "private_key": key.decode(),
        "client_email": "ana@p1.example", "client_id": "1", "token_uri": f"{cloud.host}/token",
    })  # fmt: skip


@pytest.mark.parametrize("provider", ["aws-bedrock", "anthropic-vertex"])
async def test_a_cloud_is_reached_with_its_own_way_to_log_in(
    gateway: Gateway, translators: Translators, cloud: Cloud, tmp_path: Path, provider: str
) -> None:
    environ = {
        "AWS_BEARER_TOKEN_BEDROCK": KEY,
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": cloud.host,
        "GOOGLE_APPLICATION_CREDENTIALS_JSON": service_account(cloud),
        "GOOGLE_CLOUD_PROJECT": "p1",
        "GOOGLE_CLOUD_LOCATION": "us-east5",
        "ANTHROPIC_VERTEX_BASE_URL": cloud.host,
    }
    model = {"aws-bedrock": "anthropic.claude-sonnet-4-20250514-v1:0"}.get(
        provider, "claude-sonnet-4@20250514"
    )
    target = as_spoken(SPEC, None, target_of(f"{provider}/{model}", {}, environ))
    grant = granted(target, translators, tmp_path)

    with gateway.granted(grant):
        status, text = await ask(gateway, grant, *request_of("anthropic-messages", model))

    assert (status, "All done." in text) == (200, True), text
    path, authorization = cloud.asked[-1]
    assert authorization == f"Bearer {KEY if provider == 'aws-bedrock' else 'short-lived'}"
    assert (
        "/model/" if provider == "aws-bedrock" else "/projects/p1/locations/us-east5/publishers/anthropic/"
    ) in path
    usage = grant.usage()
    assert (usage.n_input_tokens, usage.n_output_tokens) == (100, 7)
    assert usage.cost_usd == pytest.approx((90 * 3 + 10 * 0.3 + 7 * 15) / 1e6)
