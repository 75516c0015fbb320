"""Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import Document, NamesModelInBody, Tokens, count, told_tokens

__all__ = ["Messages"]

_PATH: Final = "/v1/messages"
_TYPES: Final = {"budget_exceeded": "rate_limit_error"}
_GROWING: Final = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class Messages(NamesModelInBody):
    """`/v1/messages`."""

    @property
    def name(self) -> Dialect:
        """Its name."""
        return "anthropic-messages"

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of this dialect."""
        return method == "POST" and path in {_PATH, f"{_PATH}/count_tokens"}

    def is_generation(self, path: str) -> bool:
        """Return whether it is no counting of tokens."""
        return path == _PATH

    def below(self, path: str) -> str:
        """Return the path: the base URL has no version."""
        return path

    def prepared(self, body: Document) -> Document | None:
        """Change nothing: streams tell their usage."""
        del body
        return None

    def key_header(self, key: str) -> tuple[str, str]:
        """Return the provider's own header."""
        return "x-api-key", key

    def tokens(self, answer: Sequence[Document]) -> Tokens | None:
        """Return the usage; of a stream, the first event's with the last one's on top."""
        usage: dict[str, Any] = {}
        for item in answer:
            for holder in (item, item.get("message")):
                found = holder.get("usage") if isinstance(holder, Mapping) else None
                if isinstance(found, Mapping):
                    usage |= {key: value for key, value in found.items() if value is not None}
        if not usage:
            return None
        read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        return told_tokens(
            input=[usage.get("input_tokens"), read, written],
            output=[usage.get("output_tokens")],
            cache_read=read,
            cache_write=written,
        )

    def finish_reason(self, answer: Sequence[Document]) -> str | None:
        """Return `stop_reason`."""
        for item in reversed(answer):
            for holder in (item, item.get("delta")):
                reason = holder.get("stop_reason") if isinstance(holder, Mapping) else None
                if reason:
                    return str(reason)
        return None

    def served_model(self, answer: Sequence[Document]) -> str | None:
        """Return `model`."""
        for item in answer:
            for holder in (item, item.get("message")):
                model = holder.get("model") if isinstance(holder, Mapping) else None
                if model:
                    return str(model)
        return None

    def message(self, answer: Sequence[Document]) -> Any:
        """Return the message with its blocks put together."""
        made: dict[str, Any] = {"content": []}
        blocks: dict[int, dict[str, Any]] = {}
        for item in answer:
            kind = item.get("type")
            if kind == "message_start" and isinstance(item.get("message"), Mapping):
                made |= {key: value for key, value in item["message"].items() if key != "content"}
            elif kind == "content_block_start" and isinstance(item.get("content_block"), Mapping):
                blocks[count(item.get("index"))] = dict(item["content_block"])
            elif kind == "content_block_delta" and isinstance(item.get("delta"), Mapping):
                _grow(blocks.setdefault(count(item.get("index")), {}), item["delta"])
            elif kind == "message_delta" and isinstance(item.get("delta"), Mapping):
                made |= item["delta"]
        return {**made, "content": [_finished(blocks[index]) for index in sorted(blocks)]}

    def error(self, kind: str, text: str) -> Document:
        """Return `{"type": "error", ...}`."""
        return {"type": "error", "error": {"type": _TYPES.get(kind, kind), "message": text}}


def _grow(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    key = _GROWING.get(str(delta.get("type")))
    if key is not None:
        block[key] = str(block.get(key) or "") + str(delta.get(key) or "")
    elif delta.get("type") == "input_json_delta":
        block["partial_json"] = str(block.get("partial_json") or "") + str(delta.get("partial_json") or "")


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block with the arguments of a tool read."""
    text = block.pop("partial_json", None)
    if text is None:
        return block
    try:
        return {**block, "input": json.loads(text)}
    except ValueError:
        return {**block, "input": text}
