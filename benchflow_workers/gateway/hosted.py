"""Tools that a provider itself runs and that reach the internet: an agent without a network must not have them.

A sandbox's walls end where a model may search the web for it, so the gateway looks at what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_workers.gateway.dialect import Document

__all__ = ["hosted_tools"]

_KEYS: Final = frozenset({
    "enable_search", "mcp_servers", "plugins", "search_parameters", "web_search", "web_search_options",
})  # fmt: skip
"""Keys of a request that let providers of the four dialects, and routers before them, search or call servers."""

_TYPES: Final = ("web_search", "web_fetch", "mcp", "browser", "computer_use", "x_search", "url_context")
"""Beginnings of a tool's `type`."""

_NAMED: Final = frozenset({
    "googleMaps", "googleSearch", "googleSearchRetrieval", "google_maps", "google_search", "google_search_retrieval",
    "urlContext", "url_context",
})  # fmt: skip
"""Keys of a tool that is known by its key."""


def hosted_tools(body: Document) -> tuple[str, ...]:
    """Return the names of what a request asks for that reaches the internet; empty = nothing."""
    return tuple(dict.fromkeys(_found(body)))


def _found(body: Document) -> Iterator[str]:
    yield from (key for key in sorted(_KEYS.intersection(body)) if body[key])
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, Mapping):
            yield from _of_tool(tool)


def _of_tool(tool: Mapping[str, Any]) -> Iterator[str]:
    kind = tool.get("type")
    if isinstance(kind, str) and kind.startswith(_TYPES):
        yield kind
    yield from sorted(_NAMED.intersection(tool))
