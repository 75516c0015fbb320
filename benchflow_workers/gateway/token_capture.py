"""The token ids and log probabilities of a call: what a server told of them, and why it did not tell the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from benchflow_workers.gateway.target import Capture

__all__ = ["merge_tokens", "token_capture"]

Reason = Literal["request_failed", "provider_api_unsupported", "not_requested", "not_returned"]
"""Why a field is not there."""

_NEEDS: Final[Mapping[str, Capture]] = {
    "prompt_token_ids": Capture.TOKENS,
    "token_ids": Capture.TOKENS,
    "logprobs": Capture.LOGPROBS,
}
"""Field of a capture -> what must be asked for it."""


def token_capture(
    answer: Any, *, wanted: Capture, asked: Capture, is_supported: bool, is_failed: bool
) -> dict[str, Any] | None:
    """Return what is recorded of a call's tokens; None = nobody wants them.

    Args:
        answer: A chat completion, of a stream put together; anything else tells nothing.
        wanted: What the job asks for.
        asked: What the server was asked for in the end.
        is_supported: Whether the dialect has words for it.
        is_failed: Whether there is no whole answer.

    Shape: `prompt_token_ids` and `token_ids` are lists of int, `logprobs` is a list of float with one
    for each of `token_ids`, all of the first choice; a field that is not there is null, and
    `unavailable` says why.
    """
    if wanted is Capture.NOTHING:
        return None
    none: dict[str, Any] = dict.fromkeys(_NEEDS)
    found = none if is_failed or not isinstance(answer, Mapping) else _told(answer)

    def reason(field: str) -> Reason:
        if is_failed:
            return "request_failed"
        if not is_supported:
            return "provider_api_unsupported"
        if wanted < _NEEDS[field]:
            return "not_requested"
        return "provider_api_unsupported" if asked < _NEEDS[field] else "not_returned"

    return {**found, "unavailable": {field: reason(field) for field in _NEEDS if found[field] is None}}


def merge_tokens(made: dict[str, Any], choice: Mapping[str, Any]) -> None:
    """Add the tokens of a part of a stream to the choice that is put together."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        made.setdefault("token_ids", []).extend(ids)
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if isinstance(content, list):
        made.setdefault("logprobs", {"content": []})["content"].extend(content)


def _told(answer: Mapping[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    choice = first if isinstance(first, Mapping) else {}
    logprobs = choice.get("logprobs")
    # vLLM tells the prompt's beside the choices, SGLang in each of them.
    prompt = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return {
        "prompt_token_ids": _ids(prompt),
        "token_ids": _ids(choice.get("token_ids")),
        "logprobs": _numbers(logprobs.get("content") if isinstance(logprobs, Mapping) else None),
    }


def _ids(value: Any) -> list[int] | None:
    is_list = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return value if is_list else None


def _numbers(content: Any) -> list[float] | None:
    if not isinstance(content, list):
        return None
    found = [item.get("logprob") for item in content if isinstance(item, Mapping)]
    numbers = [float(item) for item in found if isinstance(item, int | float) and not isinstance(item, bool)]
    return numbers if len(numbers) == len(content) else None
