"""Gemini's generateContent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import Document, Tokens, told_tokens

__all__ = ["GenerateContent"]

_PATH: Final = re.compile(r"/v1(?:beta|alpha)?/models/([^/:]+):(\w+)")
_STREAM, _PLAIN = "streamGenerateContent", "generateContent"
_STATUS: Final = {
    "authentication_error": (401, "UNAUTHENTICATED"),
    "permission_error": (403, "PERMISSION_DENIED"),
    "not_found_error": (404, "NOT_FOUND"),
    "rate_limit_error": (429, "RESOURCE_EXHAUSTED"),
    "budget_exceeded": (429, "RESOURCE_EXHAUSTED"),
    "invalid_request_error": (400, "INVALID_ARGUMENT"),
}


class GenerateContent:
    """`/v1beta/models/MODEL:generateContent`."""

    @property
    def name(self) -> Dialect:
        """Its name."""
        return "gemini-generate"

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of this dialect."""
        found = _PATH.fullmatch(path)
        return method == "POST" and found is not None and found.group(2) in {_STREAM, _PLAIN, "countTokens"}

    def is_generation(self, path: str) -> bool:
        """Return whether it is no counting of tokens."""
        return path.endswith((f":{_STREAM}", f":{_PLAIN}"))

    def below(self, path: str) -> str:
        """Return the path: the base URL has no version."""
        return path

    def model(self, path: str, body: Document) -> str:
        """Return the model in the path."""
        del body
        found = _PATH.fullmatch(path)
        return found.group(1) if found else ""

    def is_streamed(self, path: str, body: Document) -> bool:
        """Return whether the path asks for it."""
        del body
        return path.endswith(f":{_STREAM}")

    def prepared(self, body: Document) -> Document | None:
        """Change nothing: every answer tells its usage."""
        del body
        return None

    def key_header(self, key: str) -> tuple[str, str]:
        """Return the provider's own header."""
        return "x-goog-api-key", key

    def tokens(self, answer: Sequence[Document]) -> Tokens | None:
        """Return the last usage; thoughts count as output."""
        told = (item.get("usageMetadata") for item in answer)
        found = [usage for usage in told if usage and isinstance(usage, Mapping)]
        if not found:
            return None
        usage = found[-1]
        thoughts = usage.get("thoughtsTokenCount")
        return told_tokens(
            input=[usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")],
            output=[usage.get("candidatesTokenCount"), thoughts],
            cache_read=usage.get("cachedContentTokenCount"),
            reasoning=thoughts,
        )

    def finish_reason(self, answer: Sequence[Document]) -> str | None:
        """Return the first candidate's."""
        found = [candidate.get("finishReason") for item in answer for candidate in _candidates(item)]
        return next((str(reason) for reason in reversed(found) if reason), None)

    def served_model(self, answer: Sequence[Document]) -> str | None:
        """Return `modelVersion`."""
        return next((str(item["modelVersion"]) for item in answer if item.get("modelVersion")), None)

    def message(self, answer: Sequence[Document]) -> Any:
        """Return the candidates with the parts of all events."""
        parts: list[Any] = []
        for item in answer:
            for candidate in _candidates(item)[:1]:
                content = candidate.get("content")
                found = content.get("parts") if isinstance(content, Mapping) else None
                parts += found if isinstance(found, list) else []
        content = {"role": "model", "parts": parts}
        return {"candidates": [{"content": content, "finishReason": self.finish_reason(answer)}]}

    def error(self, kind: str, text: str) -> Document:
        """Return `{"error": {...}}` with a code and a status."""
        code, status = _STATUS.get(kind, (500, "INTERNAL"))
        return {"error": {"code": code, "message": text, "status": status}}


def _candidates(item: Document) -> list[Mapping[str, Any]]:
    found = item.get("candidates")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
