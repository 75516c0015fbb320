"""What lets a provider itself reach the internet: an agent without a network must not have it.

A sandbox's walls end where a model may search the web for it, or open an address, so the gateway looks at what is
asked for. Names are compared without case and underscores: providers differ in which of them they read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchflow_workers.gateway.dialect import Document

__all__ = ["hosted_tools"]

FETCHED: Final = "file from an address"
"""What is said of a part of a message that the provider would have to fetch."""

_KEYS: Final = frozenset({
    "enablesearch", "mcpservers", "plugins", "searchparameters", "websearch", "websearchoptions",
})  # fmt: skip
"""Keys of a request that let providers of the four dialects, and routers before them, search or call servers."""

_TYPES: Final = (
    "websearch", "webfetch", "webextractor", "mcp", "browser", "computeruse", "xsearch", "livesearch", "urlcontext",
    "builtinfunction",
)  # fmt: skip
"""Parts of a tool's `type`; the last one is a tool of Moonshot's own, of which all but the search are harmless."""

_NAMED: Final = frozenset({
    "enterprisewebsearch", "googlemaps", "googlesearch", "googlesearchretrieval", "mcpservers", "parallelaisearch",
    "retrieval", "urlcontext",
})  # fmt: skip
"""Keys of a tool that is known by its key."""

_MESSAGES: Final = frozenset({
    "contents", "input", "instructions", "messages", "system", "systeminstruction",
})  # fmt: skip
"""Keys of a request that hold what the model is told."""

_WITHIN: Final = frozenset({"content", "functionresponse", "output", "parts"})
"""Keys of a message that hold parts of it; what a tool is called with is none."""

_FILES: Final = frozenset({
    "audiourl", "file", "filedata", "fileuri", "fileurl", "imageurl", "videourl",
})  # fmt: skip
"""Keys of a part that hold a file or where it is."""

_PLACES: Final = _FILES | {"url"}
"""The same below them."""

_FETCHED: Final = ("http:", "https:", "ftp:")


def hosted_tools(body: Document) -> tuple[str, ...]:
    """Return the names of what a request asks for that reaches the internet; empty = nothing."""
    return tuple(dict.fromkeys(_found(body)))


def _found(body: Document) -> Iterator[str]:
    for key, value in body.items():
        name = _plain(key)
        # An empty table of options asks for what it is about; an empty list for nothing.
        if name in _KEYS and value is not None and value is not False and value != []:
            yield key
        if name == "tools":
            yield from _of_tools(value)
        if name in _MESSAGES and _is_fetched(value):
            yield FETCHED


def _of_tools(tools: Any) -> Iterator[str]:
    """Yield what is found in tools; a provider may take one for a list of one, and a tool that holds tools."""
    for tool in tools if isinstance(tools, list) else [tools]:
        if not isinstance(tool, Mapping):
            continue
        for key, value in tool.items():
            name = _plain(key)
            if name == "type" and isinstance(value, str) and any(part in _plain(value) for part in _TYPES):
                yield value
            if name in _NAMED:
                yield key
            if name == "tools":
                yield from _of_tools(value)


def _is_fetched(value: Any) -> bool:
    """Return whether something of a message is to be fetched from elsewhere."""
    if isinstance(value, list):
        return any(map(_is_fetched, value))
    if not isinstance(value, Mapping):
        return False
    for key, held in value.items():
        name = _plain(key)
        # The source of a quotation is a text, that of a file a table.
        is_file = name in _FILES or (name == "source" and isinstance(held, Mapping))
        if (is_file and _is_address(held)) or (name in _WITHIN and _is_fetched(held)):
            return True
    return False


def _is_address(value: Any) -> bool:
    if isinstance(value, str):
        return value.lstrip()[:6].lower().startswith(_FETCHED)
    if isinstance(value, Mapping):
        return any(_is_address(held) for key, held in value.items() if _plain(key) in _PLACES)
    return False


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
