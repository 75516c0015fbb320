"""How a model chooses its words: what a job asks for, where the agent does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import Document
from benchflow_workers.gateway.target import Sampling

__all__ = ["sampled"]

_NAMES: Final[Mapping[Dialect, tuple[str, str, tuple[str, ...]]]] = {
    "openai-completions": ("temperature", "top_p", ("max_completion_tokens", "max_tokens")),
    "openai-responses": ("temperature", "top_p", ("max_output_tokens",)),
    "anthropic-messages": ("temperature", "top_p", ("max_tokens",)),
    "gemini-generate": ("temperature", "topP", ("maxOutputTokens",)),
}
"""What each is called; any of the names of the longest answer says it."""

_OPENAI_ITSELF: Final = frozenset({"openai", "us-openai", "azure-foundry-openai"})
"""Providers whose newer models refuse the older of two names; servers of others may know only that one."""


def sampled(
    dialect: Dialect, provider: str, asked: Document, sampling: Sampling
) -> tuple[Document, tuple[str, ...]]:
    """Return a body with what it does not say itself, and the names of what was added.

    Args:
        dialect: How it is written.
        provider: Who reads it.
        asked: As the agent wrote it.
        sampling: What is asked for.
    """
    table = _table(dialect, asked)
    if table is None:
        return asked, ()
    temperature, top_p, longest = _NAMES[dialect]
    is_older = dialect == "openai-completions" and provider not in _OPENAI_ITSELF
    wanted = {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        longest[-1] if is_older else longest[0]: sampling.max_output_tokens,
    }
    said = {name for name, value in table.items() if value is not None}
    said |= {*longest} if said & {*longest} else set()
    added = {name: value for name, value in wanted.items() if value is not None and name not in said}
    if not added:
        return asked, ()
    filled = {**table, **added}
    return ({**asked, "generationConfig": filled} if dialect == "gemini-generate" else filled), tuple(added)


def _table(dialect: Dialect, asked: Document) -> Mapping[str, Any] | None:
    """Return the object that holds such settings; None = there is something else in its place."""
    if dialect != "gemini-generate":
        return asked
    own = asked.get("generationConfig")
    return own if isinstance(own, Mapping) else {} if own is None else None
