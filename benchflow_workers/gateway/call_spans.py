"""The span of a call to a model: who was asked and what it took, by the conventions of OpenTelemetry; not a word of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from benchflow_workers.gateway.calls import Call
from benchflow_workers.gateway.dialect import Document
from benchflow_workers.telemetry.base import Attributes, Done

__all__ = ["note_call", "provider_name"]

_PROVIDERS: Final[Mapping[str, str]] = {
    "azure-foundry-openai": "azure.ai.openai",
    "google": "gcp.gemini",
    "us-openai": "openai",
}
"""Providers that the conventions know by another name."""

_NAME_CHARS: Final = 200  # of what a provider says
_INTERRUPTED: Final = "interrupted"


def provider_name(provider: str) -> str:
    """Return the name that the conventions have for a provider."""
    return _PROVIDERS.get(provider, provider)


def note_call(call: Call, answer: Sequence[Document]) -> None:
    """Make the span of a finished call; one that asked for no answer, or was not made, has none."""
    span = call.grant.span
    if not span.is_taken or not call.attempts or not call.rules.is_generation(call.path):
        return
    operation = "generate_content" if call.rules.name == "gemini-generate" else "chat"
    model = call.grant.target.model
    ended_ns = call.started_ns + round(call.seconds * 1e9)
    about = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
    done = Done(
        f"{operation} {model}", {**about, **_seen(call, answer)}, call.started_ns, ended_ns, _error(call)
    )
    span.record(done)


def _seen(call: Call, answer: Sequence[Document]) -> Attributes:
    target, tokens = call.grant.target, call.tokens
    server = urlsplit(target.urls[call.rules.name])
    reason = _said(call, call.rules.finish_reason(answer))
    return {
        "gen_ai.provider.name": provider_name(target.provider),
        "gen_ai.request.stream": call.rules.is_streamed(call.path, call.request),
        "gen_ai.response.model": _said(call, call.rules.served_model(answer)),
        "gen_ai.response.finish_reasons": None if reason is None else [reason],
        "gen_ai.response.time_to_first_chunk": call.first_byte_s,
        "gen_ai.usage.input_tokens": None if tokens is None else tokens.input,
        "gen_ai.usage.output_tokens": None if tokens is None else tokens.output,
        "gen_ai.usage.cache_read.input_tokens": None if tokens is None else tokens.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": None if tokens is None else tokens.cache_write,
        "gen_ai.usage.reasoning.output_tokens": None if tokens is None else tokens.reasoning,
        "http.response.status_code": call.status or None,
        "server.address": server.hostname,
        "server.port": server.port,
        "bf.call.attempts": call.attempts,
        "bf.call.waited_s": round(call.waited_s, 4),
        "bf.call.cost_usd": call.cost.usd,
        "bf.call.price_source": call.cost.source or None,
    }


def _said(call: Call, text: str | None) -> str | None:
    """Return a name that a provider said, short and without secrets."""
    return None if text is None else str(call.grant.redactor.value(text))[:_NAME_CHARS]


def _error(call: Call) -> str:
    if call.status >= 400:
        return str(call.status)
    return _INTERRUPTED if call.error else ""
