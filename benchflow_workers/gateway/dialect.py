"""What the gateway must know of a dialect: where the model's name stands, what was used, how an error looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeGuard

from benchflow_client.catalog.providers import Dialect

__all__ = ["DialectRules", "Document", "NamesModelInBody", "Tokens", "count", "told_tokens"]

_MOST_TOKENS: Final = 10**12  # of one call: a larger number would spoil every sum

Document = Mapping[str, Any]
"""A JSON object of an answer: the whole of a plain one, each event of a streamed one."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a call used, in one form for all dialects.

    Attributes:
        input: Tokens of the request, those from a cache and those written to it included.
        output: Tokens of the answer, those of reasoning included.
        cache_read: Tokens of the request that came from a cache.
        cache_write: Tokens of the request that were written to a cache.
        reasoning: Tokens of the answer that nobody sees.
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def total(self) -> int:
        """Return input and output."""
        return self.input + self.output


class DialectRules(Protocol):
    """One dialect."""

    @property
    def name(self) -> Dialect:
        """Its name."""
        ...

    def serves(self, method: str, path: str) -> bool:
        """Return whether a request is one of this dialect."""
        ...

    def is_generation(self, path: str) -> bool:
        """Return whether a request has a model answer; others count tokens or list models."""
        ...

    def below(self, path: str) -> str:
        """Return what of a path is appended to the provider's base URL."""
        ...

    def model(self, path: str, body: Document) -> str:
        """Return the model that is asked for; empty = none is named."""
        ...

    def is_streamed(self, path: str, body: Document) -> bool:
        """Return whether the answer comes in events."""
        ...

    def prepared(self, body: Document) -> Document | None:
        """Return the body with what makes the provider report usage; None = it is sent as it is."""
        ...

    def key_header(self, key: str) -> tuple[str, str]:
        """Return the header that carries the provider's key."""
        ...

    def tokens(self, answer: Sequence[Document]) -> Tokens | None:
        """Return what was used; None = the provider did not say."""
        ...

    def finish_reason(self, answer: Sequence[Document]) -> str | None:
        """Return why the model stopped; None = it did not say."""
        ...

    def served_model(self, answer: Sequence[Document]) -> str | None:
        """Return the model that answered; None = it did not say."""
        ...

    def message(self, answer: Sequence[Document]) -> Any:
        """Return the answer of a stream as a plain one would have it."""
        ...

    def error(self, kind: str, text: str) -> Document:
        """Return the body of an error in the form its clients read.

        Args:
            kind: `authentication_error`, `permission_error`, `not_found_error`, `rate_limit_error`,
                `budget_exceeded`, `invalid_request_error`, or `api_error`.
            text: What happened and what to do.
        """
        ...


def count(value: Any) -> int:
    """Return a number of tokens; what is none, or cannot be true, counts as 0."""
    return value if _is_count(value) else 0


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def told_tokens(
    *,
    input: Sequence[Any],
    output: Sequence[Any],
    cache_read: Any = None,
    cache_write: Any = None,
    reasoning: Any = None,
) -> Tokens | None:
    """Return the tokens of numbers that a provider told; None = it told none, or one that cannot be true.

    Args:
        input: What adds up to the tokens of the request; None = not told.
        output: The same of the answer.
        cache_read: See `Tokens`, as the next two.
        cache_write: Of these a wrong one counts as 0.
        reasoning: It is only told apart.
    """
    told = [value for value in (*input, *output) if value is not None]
    if not told or not all(map(_is_count, told)):
        return None
    return Tokens(
        input=sum(map(count, input)),
        output=sum(map(count, output)),
        cache_read=count(cache_read),
        cache_write=count(cache_write),
        reasoning=count(reasoning),
    )


class NamesModelInBody:
    """What dialects share whose requests say in their body what is asked of whom."""

    def model(self, path: str, body: Document) -> str:
        """Return `model`."""
        del path
        return str(body.get("model") or "")

    def is_streamed(self, path: str, body: Document) -> bool:
        """Return `stream`."""
        del path
        return body.get("stream") is True
