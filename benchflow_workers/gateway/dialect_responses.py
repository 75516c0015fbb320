"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import Document, Tokens, told_tokens
from benchflow_workers.gateway.dialect_openai import OpenAi

__all__ = ["Responses"]


class Responses(OpenAi):
    """`/v1/responses`."""

    @property
    def name(self) -> Dialect:
        """Its name."""
        return "openai-responses"

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of this dialect."""
        return method == "POST" and self.below(path) == "/responses"

    def prepared(self, body: Document) -> Document | None:
        """Change nothing: the last event tells the usage."""
        del body
        return None

    def tokens(self, answer: Sequence[Document]) -> Tokens | None:
        """Return the usage of the finished response."""
        usage = _response(answer).get("usage")
        if not usage or not isinstance(usage, Mapping):
            return None
        given, made = usage.get("input_tokens_details"), usage.get("output_tokens_details")
        return told_tokens(
            input=[usage.get("input_tokens")],
            output=[usage.get("output_tokens")],
            cache_read=given.get("cached_tokens") if isinstance(given, Mapping) else None,
            reasoning=made.get("reasoning_tokens") if isinstance(made, Mapping) else None,
        )

    def finish_reason(self, answer: Sequence[Document]) -> str | None:
        """Return the status, or why a response is incomplete."""
        response = _response(answer)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else response.get("status")
        return str(reason) if reason else None

    def served_model(self, answer: Sequence[Document]) -> str | None:
        """Return `model`."""
        model = _response(answer).get("model")
        return str(model) if model else None

    def message(self, answer: Sequence[Document]) -> Any:
        """Return the finished response."""
        return _response(answer)


def _response(answer: Sequence[Document]) -> Mapping[str, Any]:
    """Return the response as it was last told."""
    for item in reversed(answer):
        inner = item.get("response")
        if isinstance(inner, Mapping):
            return inner
        if item.get("object") == "response":
            return item
    return {}
