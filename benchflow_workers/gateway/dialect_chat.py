"""Chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_client.catalog.providers import Dialect
from benchflow_workers.gateway.dialect import Document, Tokens, count, told_tokens
from benchflow_workers.gateway.dialect_openai import OpenAi
from benchflow_workers.gateway.token_capture import merge_tokens

__all__ = ["ChatCompletions"]


class ChatCompletions(OpenAi):
    """`/v1/chat/completions`."""

    @property
    def name(self) -> Dialect:
        """Its name."""
        return "openai-completions"

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of this dialect."""
        return method == "POST" and self.below(path) == "/chat/completions"

    def prepared(self, body: Document) -> Document | None:
        """Ask a stream for its usage, which it does not tell by itself."""
        options = body.get("stream_options")
        more = options if isinstance(options, Mapping) else {}
        if body.get("stream") is not True or more.get("include_usage") is True:
            return None
        return {**body, "stream_options": {**more, "include_usage": True}}

    def tokens(self, answer: Sequence[Document]) -> Tokens | None:
        """Return the last `usage`."""
        found = [item["usage"] for item in answer if item.get("usage") and isinstance(item["usage"], Mapping)]
        return _told(found[-1]) if found else None

    def finish_reason(self, answer: Sequence[Document]) -> str | None:
        """Return the first choice's."""
        found = (
            choice.get("finish_reason") for item in reversed(answer) for choice in reversed(_choices(item))
        )
        return next((str(reason) for reason in found if reason), None)

    def served_model(self, answer: Sequence[Document]) -> str | None:
        """Return `model`."""
        return next((str(item["model"]) for item in answer if item.get("model")), None)

    def message(self, answer: Sequence[Document]) -> Any:
        """Return the choices with their deltas put together, and the ids of the prompt's tokens where they are told."""
        choices: dict[int, dict[str, Any]] = {}
        prompt: dict[str, Any] = {}
        for item in answer:
            if item.get("prompt_token_ids"):
                prompt["prompt_token_ids"] = item["prompt_token_ids"]
            for choice in _choices(item):
                index = count(choice.get("index"))
                made = choices.setdefault(index, {"index": index, "message": {}, "finish_reason": None})
                made["finish_reason"] = choice.get("finish_reason") or made["finish_reason"]
                delta = choice.get("delta")
                if isinstance(delta, Mapping):
                    _merge(made["message"], delta)
                merge_tokens(made, choice)
        return {**prompt, "choices": [choices[index] for index in sorted(choices)]}


def _told(usage: Mapping[str, Any]) -> Tokens | None:
    prompt, answer = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return told_tokens(
        input=[usage.get("prompt_tokens")],
        output=[usage.get("completion_tokens")],
        cache_read=prompt.get("cached_tokens") if isinstance(prompt, Mapping) else None,
        reasoning=answer.get("reasoning_tokens") if isinstance(answer, Mapping) else None,
    )


def _choices(item: Document) -> list[Mapping[str, Any]]:
    found = item.get("choices")
    return [choice for choice in found if isinstance(choice, Mapping)] if isinstance(found, list) else []


def _merge(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a delta: text grows, tool calls grow by their index, anything else is replaced."""
    for key, value in delta.items():
        if key == "tool_calls" and isinstance(value, list):
            _merge_calls(message.setdefault("tool_calls", []), value)
        elif isinstance(value, str) and key not in {"role", "id", "type"}:
            message[key] = (message.get(key) or "") + value
        elif value is not None:
            message[key] = value


def _merge_calls(calls: list[dict[str, Any]], deltas: list[Any]) -> None:
    for delta in deltas:
        if not isinstance(delta, Mapping):
            continue
        index = count(delta.get("index"))
        known = next((call for call in calls if call["index"] == index), None)
        if known is None:
            known = {"index": index, "function": {"name": "", "arguments": ""}}
            calls.append(known)
        known.update({key: delta[key] for key in ("id", "type") if delta.get(key)})
        function = delta.get("function")
        if isinstance(function, Mapping):
            for key in ("name", "arguments"):
                known["function"][key] += str(function.get(key) or "")
