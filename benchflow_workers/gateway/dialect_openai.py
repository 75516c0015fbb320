"""What the dialects of OpenAI share: paths with a version, a bearer token, the form of errors."""

from __future__ import annotations

from typing import Final

from benchflow_workers.gateway.dialect import Document, NamesModelInBody

__all__ = ["OpenAi"]

_PREFIX: Final = "/v1"


class OpenAi(NamesModelInBody):
    """A dialect whose every request is for an answer."""

    def is_generation(self, path: str) -> bool:
        """Every request is."""
        del path
        return True

    def below(self, path: str) -> str:
        """Return the path without its version, which the provider's base URL ends with."""
        return path.removeprefix(_PREFIX)

    def key_header(self, key: str) -> tuple[str, str]:
        """Return a bearer token."""
        return "Authorization", f"Bearer {key}"

    def error(self, kind: str, text: str) -> Document:
        """Return `{"error": {...}}`."""
        code = "insufficient_quota" if kind == "budget_exceeded" else kind
        return {"error": {"message": text, "type": kind, "param": None, "code": code}}
