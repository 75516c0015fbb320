"""How requests to models and their answers look."""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["DIALECTS", "Dialect"]

Dialect = Literal["openai-completions", "openai-responses", "anthropic-messages", "gemini-generate"]
"""One form of requests and answers."""

DIALECTS: Final[tuple[Dialect, ...]] = (
    "openai-completions",
    "openai-responses",
    "anthropic-messages",
    "gemini-generate",
)
