"""One call passed on: the token exchanged for the key, bytes as they are, a record of both sides."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import ceil
from typing import Final

from aiohttp import ClientError, ClientResponse, web

from benchflow_workers.gateway.calls import Call, read_object
from benchflow_workers.gateway.dialect import DialectRules, Document
from benchflow_workers.gateway.dialects import RULES, dialect_of
from benchflow_workers.gateway.grants import Grant, Grants
from benchflow_workers.gateway.hosted import hosted_tools
from benchflow_workers.gateway.journal import Journal
from benchflow_workers.gateway.outward import LARGE_BYTES, Outward
from benchflow_workers.gateway.pacing import LimitedError, Pace, Pacer
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.wording import wordings

__all__ = ["Forwarder"]

ATTEMPTS: Final = 4
LONGEST_WAIT_S: Final = 60.0
"""A provider that asks for a longer wait is answered to the agent."""

_BASE_WAIT_S: Final = 1.0
_RETRIED: Final = frozenset({429, 500, 502, 503, 504, 529})
_NOT_UNDERSTOOD: Final = frozenset({400, 422})
"""What a server says to a call that asks for something it does not know."""

_NOT_SENT: Final = frozenset({
    "host", "content-length", "connection", "transfer-encoding", "accept-encoding", "authorization", "x-api-key",
    "x-goog-api-key", "api-key", "cookie", "proxy-authorization", "keep-alive", "te", "upgrade",
    "x-goog-fieldmask", "x-http-method-override",
})  # fmt: skip
"""Headers of the agent's that are the connection's own, would carry its token to the provider, or hide what a call used."""

_OF_TRANSLATORS: Final = "x-litellm-"
"""Begins headers in which LiteLLM is told what it does besides."""

_NOT_ASKED: Final = frozenset({"key", "fields", "$fields"})
"""The same of a query."""

_NOT_ANSWERED: Final = frozenset({
    "content-length", "content-encoding", "connection", "transfer-encoding", "keep-alive", "set-cookie", "date", "server",
})  # fmt: skip

_OTHER_MODELS: Final = frozenset({"models", "fallbacks"})
"""What routers read in the place of `model`, or after it."""

_ELSEWHERE: Final = frozenset({
    "api_base", "api_key", "api_version", "base_url", "callbacks", "custom_llm_provider", "extra_body", "extra_headers",
    "guardrails", "headers", "model_list", "organization", "prompt_id", "proxy", "region_name", "user_config",
})  # fmt: skip
_ELSEWHERE_PREFIXES: Final = (
    "aws_",
    "azure_",
    "langfuse_",
    "litellm_",
    "mock_",
    "s3_",
    "sagemaker_",
    "vertex_",
)
"""What LiteLLM reads from a body to call another place, with its key, or none; it refuses most of them itself."""

_STATUS_OF: Final = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "budget_exceeded": 429,
    "api_error": 502,
}


class _RefusedError(Exception):
    """A call that is not passed on."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass(frozen=True, slots=True)
class Forwarder:
    """Answers every request that comes to the gateway.

    Attributes:
        providers: Connections to them.
        grants: Tokens that are good.
        prices: What calls cost.
        journal: Records calls beside them.
        pacer: Keeps calls to the fleet's limits.
    """

    providers: Outward
    grants: Grants
    prices: Prices
    journal: Journal
    pacer: Pacer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass a call on, or say why not in the form its client reads."""
        rules = dialect_of(request.method, request.path)
        grant = None
        try:
            grant = self._grant(request)
            if request.method == "HEAD":
                return web.Response()
            if request.method == "GET" and request.path.rstrip("/").endswith("/models"):
                return web.json_response(_models(grant))
            async with grant.slots, grant.large_slots if _is_large(request) else nullcontext():
                return await self._call(request, grant, rules)
        except _RefusedError as refused:
            shape = rules or next(iter(RULES.values()))
            if grant is not None and refused.kind != "budget_exceeded":
                grant.turn_away(refused.text)
            return _json(_STATUS_OF[refused.kind], shape.error(refused.kind, refused.text))
        except LimitedError as limited:
            shape = rules or next(iter(RULES.values()))
            return _json(
                429, shape.error("rate_limit_error", limited.text), {"Retry-After": str(ceil(limited.wait_s))}
            )

    def _grant(self, request: web.Request) -> Grant:
        grant = self.grants.find(_token(request))
        if grant is None:
            raise _RefusedError("authentication_error", "This token is good for nothing (any more).")
        return grant

    async def _call(
        self, request: web.Request, grant: Grant, rules: DialectRules | None
    ) -> web.StreamResponse:
        if rules is None:
            raise _RefusedError("not_found_error", f"{request.method} {request.path} is not passed on.")
        if rules.name not in grant.target.urls:
            spoken = ", ".join(grant.target.urls)
            raise _RefusedError(
                "not_found_error", f"Provider {grant.target.provider} speaks {spoken}, not {rules.name}."
            )
        body, asked = await _asked(request, grant, rules)
        call = Call(grant, rules, request.path, asked, request_bytes=len(body))
        pace = self.pacer.pace(call)
        with grant.call():
            try:
                return await self._forward(request, call, body, pace)
            finally:
                # Counted at once, so that the next call knows; written beside.
                self.journal.add(call, call.finish(self.prices))
                pace.settle()
                if _is_large(request):
                    await self.journal.written()

    async def _forward(self, request: web.Request, call: Call, body: bytes, pace: Pace) -> web.StreamResponse:
        url = call.grant.target.urls[call.rules.name] + call.rules.below(request.path)
        headers = _headers(request, call)
        query = {name: value for name, value in request.query.items() if name not in _NOT_ASKED}
        ways = list(wordings(call.rules, call.path, call.request, call.grant))
        while True:
            await pace.turn()
            call.attempts += 1
            call.added, call.capture = ways[0].added, ways[0].capture
            try:
                async with self.providers.post(url, ways[0].body(body), headers, query) as answer:
                    call.status = answer.status
                    pace.answered(answer.status, _retry_after(answer))
                    if 300 <= answer.status < 400:
                        call.status, call.error = 502, f"sent elsewhere, to {answer.headers.get('location')}"
                        raise _RefusedError("api_error", f"The provider's address {url} {call.error}.")
                    if answer.status in _NOT_UNDERSTOOD and len(ways) > 1:
                        ways = ways[1:]
                        continue
                    wait_s = _wait(answer, call.attempts)
                    if wait_s is None:
                        call.note_capture()
                        return await _pass_on(request, call, answer)
            except (ClientError, TimeoutError) as error:
                call.status, wait_s = 502, _backoff(call.attempts)
                if call.first_byte_s is not None or call.attempts >= ATTEMPTS:
                    call.error = f"{type(error).__name__}: {error}"
                    raise _RefusedError("api_error", f"The provider cannot be reached: {error}.") from error
            await asyncio.sleep(wait_s)


def _headers(request: web.Request, call: Call) -> dict[str, str]:
    """Return the agent's headers with the provider's key in the place of the token."""
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.lower() not in _NOT_SENT and not name.lower().startswith(_OF_TRANSLATORS)
    }
    key, bearer = call.grant.target.key, call.grant.target.bearer
    if key is None:
        return headers
    if bearer is None:
        return headers | dict([call.rules.key_header(key)])
    for name, value in bearer.items():
        own = next((held for held in headers if held.lower() == name), None)
        headers[name] = value if own is None else f"{headers.pop(own)},{value}"
    return {**headers, "Authorization": f"Bearer {key}"}


async def _asked(request: web.Request, grant: Grant, rules: DialectRules) -> tuple[bytes, Document]:
    """Return the body of a call that may be made, as it is and as it was read."""
    body = await request.read()
    asked = read_object(body)
    if asked is None:
        raise _RefusedError("invalid_request_error", "The body is no JSON object, or has a key twice.")
    names = {name.lower() for name in asked}
    if len(names) < len(asked):
        raise _RefusedError("invalid_request_error", "The body has a key twice, but for its case.")
    model = rules.model(request.path, asked)
    if model != grant.target.model:
        raise _RefusedError(
            "not_found_error", f"Model {model!r} is not this trial's; it is {grant.target.model!r}."
        )
    if others := _OTHER_MODELS & names:
        raise _RefusedError("invalid_request_error", f"{min(others)!r} would ask other models; leave it out.")
    if grant.target.translation is not None and (steering := sorted(filter(_steers, names))):
        raise _RefusedError(
            "invalid_request_error", f"{steering[0]!r} is not for an agent to say; leave it out."
        )
    if not grant.is_web_open and (hosted := hosted_tools(asked)):
        raise _RefusedError(
            "permission_error",
            f"This task's network is not open, so its model gets no {', '.join(hosted)}; leave it out.",
        )
    if (spent := grant.purse.refusal()) is not None:
        raise _RefusedError("budget_exceeded", f"The budget of this trial is used up: {spent}.")
    return body, asked


def _steers(name: str) -> bool:
    """Return whether a key of a body tells LiteLLM where and how to call."""
    return name in _ELSEWHERE or name.startswith(_ELSEWHERE_PREFIXES)


async def _pass_on(request: web.Request, call: Call, answer: ClientResponse) -> web.StreamResponse:
    """Send an answer as it comes; one that the provider cuts is cut for the agent too."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in _NOT_ANSWERED}
    call.status = answer.status
    if (asked := _retry_after(answer)) is not None:
        call.grant.asked_to_wait(asked)
    response = web.StreamResponse(status=answer.status, headers=headers)
    if "content-encoding" not in answer.headers:
        response.content_length = answer.content_length
    try:
        await response.prepare(request)
        async for part in answer.content.iter_any():
            call.take(part)
            await response.write(part)
        await response.write_eof()
    except ClientError as error:
        call.error = f"the provider broke off: {type(error).__name__}"
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        call.error = "the agent went away"
    except asyncio.CancelledError:
        call.error = "the agent went away"
        raise
    return response


def _is_large(request: web.Request) -> bool:
    """Return whether a body is large, or does not say."""
    return request.content_length is None or request.content_length > LARGE_BYTES


def _token(request: web.Request) -> str:
    """Return the token from whichever place the dialect has for a key."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    places = (
        bearer.strip() if scheme.lower() == "bearer" else "",
        request.headers.get("x-api-key", ""),
        request.headers.get("x-goog-api-key", ""),
        request.query.get("key", ""),
    )
    return next((place for place in places if place), "")


def _wait(answer: ClientResponse, attempt: int) -> float | None:
    """Return the seconds until a call is tried again; None = its answer is passed on."""
    if answer.status not in _RETRIED or attempt >= ATTEMPTS:
        return None
    wait_s = _backoff(attempt) + (_retry_after(answer) or 0.0)
    return wait_s if wait_s <= LONGEST_WAIT_S else None


def _retry_after(answer: ClientResponse) -> float | None:
    """Return the seconds a provider asks to wait; None = it does not, or names a day."""
    with suppress(ValueError):
        return max(0.0, float(answer.headers.get("retry-after", "")))
    return None


def _backoff(attempt: int) -> float:
    """Return a random time up to a second that doubles with every attempt ("full jitter", Brooker 2015)."""
    return random.uniform(0.0, _BASE_WAIT_S * 2 ** (attempt - 1))


def _models(grant: Grant) -> Mapping[str, object]:
    model = grant.target.model
    entry = {
        "id": model,
        "object": "model",
        "type": "model",
        "name": f"models/{model}",
        "display_name": model,
    }
    return {"object": "list", "data": [entry], "models": [entry], "has_more": False}


def _json(status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(body, status=status, headers=headers)
