"""One call as it is recorded: what was asked, what was answered, what it took."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow_client.schema.base import utc_now
from benchflow_client.store.documents import json_lines, plain_json
from benchflow_workers.gateway.dialect import DialectRules, Document, Tokens
from benchflow_workers.gateway.grants import RECORDED_BYTES, Grant
from benchflow_workers.gateway.prices import Cost, Prices
from benchflow_workers.gateway.target import Capture
from benchflow_workers.gateway.token_capture import token_capture
from benchflow_workers.gateway.wording import CAPTURED_DIALECT

__all__ = ["Call", "read_answer", "read_object"]

ANSWER_LIMIT_BYTES: Final = 64 << 20
"""Bytes of an answer that are recorded; all of it is passed on."""

_DATA: Final = b"data:"
_EVENTS: Final = (_DATA, b"event:", b"id:", b":")
_BYTES_OF_A_TOKEN: Final = 4


@dataclass
class Call:
    """A call while it is made.

    Attributes:
        grant: Whose it is.
        rules: Its dialect.
        path: Path that was asked for.
        request: Body as the agent sent it.
        request_bytes: Its size.
        added: What the provider was asked beside it.
        capture: What of the answer's tokens it was asked.
        attempts: How often the provider was asked.
        status: What the agent was answered with.
        error: Why it did not end well; empty = it did.
        waited_s: Seconds it waited for limits of the fleet.
        used: What it counts with its provider, told or guessed; None = it made nothing.
    """

    grant: Grant
    rules: DialectRules
    path: str
    request: Document
    request_bytes: int = 0
    added: tuple[str, ...] = ()
    capture: Capture = Capture.NOTHING
    attempts: int = 0
    status: int = 0
    error: str = ""
    waited_s: float = 0.0
    used: Tokens | None = None
    started: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.time_ns)
    started_at: str = field(default_factory=lambda: utc_now().isoformat())
    first_byte_s: float | None = None
    seconds: float = 0.0
    _answer: bytearray = field(default_factory=bytearray)
    _answer_bytes: int = 0
    _tokens: Tokens | None = None
    _cost: Cost = field(default_factory=lambda: Cost(None, ""))

    @property
    def tokens(self) -> Tokens | None:
        """What a finished call used; None = the provider did not say."""
        return self._tokens

    @property
    def cost(self) -> Cost:
        """What a finished call cost."""
        return self._cost

    def take(self, part: bytes) -> None:
        """Take the next bytes of the answer."""
        if self.first_byte_s is None:
            self.first_byte_s = time.monotonic() - self.started
        self._answer_bytes += len(part)
        self._answer += part[: max(0, ANSWER_LIMIT_BYTES - len(self._answer))]

    def note_capture(self) -> None:
        """Note, for the next calls, that a server answers only when it is asked for less."""
        if self.status < 400 and self.rules.name == CAPTURED_DIALECT:
            self.grant.capture = self.capture

    def finish(self, prices: Prices) -> list[Mapping[str, Any]]:
        """Count the call and return the answer's documents."""
        self.seconds = time.monotonic() - self.started
        answer = read_answer(bytes(self._answer))
        # Streams tell a part before their end: what is cut told no sum, unless it had finished.
        is_whole = not self.error or self.rules.finish_reason(answer) is not None
        tokens = self.rules.tokens(answer) if is_whole else None
        self._tokens = tokens
        if tokens is not None:
            self._cost = self._price(prices, tokens)
        if self.rules.is_generation(self.path):
            self.grant.settle(self.status, tokens, self._cost)
            if self.status < 400 and tokens is not None:
                self.used = tokens
                self.grant.purse.charge(tokens, self._cost)
            elif self.status < 400:
                self.used = self._guess(answer)
                self.grant.purse.charge(self.used, self._price(prices, self.used))
        return answer

    def _price(self, prices: Prices, tokens: Tokens) -> Cost:
        return prices.cost(self.grant.target.provider, self.grant.target.model, tokens)

    def _guess(self, answer: Sequence[Document]) -> Tokens:
        """Return about what a call used that told nothing, so that no cap is got round by not listening."""
        made = len(answer) if len(answer) > 1 else self._answer_bytes // _BYTES_OF_A_TOKEN
        return Tokens(self.request_bytes // _BYTES_OF_A_TOKEN, made)

    def line(self, answer: Sequence[Document]) -> bytes:
        """Return the record of a finished call, as a line of JSON without secrets."""
        tokens = self._tokens
        is_streamed = self.rules.is_streamed(self.path, self.request)
        whole: Any = self.rules.message(answer) if is_streamed else (answer[0] if answer else None)
        record = {
            "ts": self.started_at,
            "dialect": self.rules.name,
            "provider": self.grant.target.provider,
            "translated_by": None if self.grant.target.translation is None else "litellm",
            "path": self.path,
            "model": self.rules.model(self.path, self.request),
            "served_model": self.rules.served_model(answer),
            "is_streamed": is_streamed,
            "status": self.status,
            "attempts": self.attempts,
            "error": self.error or None,
            "latency_s": round(self.seconds, 4),
            "waited_s": round(self.waited_s, 4),
            "time_to_first_byte_s": None if self.first_byte_s is None else round(self.first_byte_s, 4),
            "finish_reason": self.rules.finish_reason(answer),
            "tokens": None if tokens is None else _counts(tokens),
            "cost_usd": self._cost.usd,
            "price_source": self._cost.source or None,
            "added": list(self.added),
            "token_capture": self._token_capture(whole),
            "request": self.request,
            "request_bytes": self.request_bytes,
            "response": whole if answer else bytes(self._answer[:2000]).decode("utf-8", "replace"),
            "response_bytes": self._answer_bytes,
        }
        line = self._masked(record)
        self.grant.recorded_bytes += len(line)
        return line

    def _token_capture(self, answer: Any) -> dict[str, Any] | None:
        return token_capture(
            answer,
            wanted=self.grant.target.capture,
            asked=self.capture,
            is_supported=self.rules.name == CAPTURED_DIALECT,
            is_failed=bool(self.error) or self.status >= 400,
        )

    def _masked(self, record: Mapping[str, Any]) -> bytes:
        """Return a record as a line without secrets; without its bodies where they find no room.

        The line is masked as one: a body of a hundred thousand strings would take hours string by string.
        """
        numbers = {**record, "request": None, "response": None, "token_capture": None}
        if self.grant.recorded_bytes + self.request_bytes + self._answer_bytes > RECORDED_BYTES:
            return json_lines([self.grant.redactor.value(plain_json(numbers))])
        line = json_lines([record])
        masked = self.grant.redactor.bytes(line)
        # A mask in the place of a number is no JSON.
        is_json = masked == line or read_object(masked) is not None
        return masked if is_json else json_lines([self.grant.redactor.value(numbers)])


def _counts(tokens: Tokens) -> dict[str, int]:
    return {
        "input": tokens.input,
        "output": tokens.output,
        "cache_read": tokens.cache_read,
        "cache_write": tokens.cache_write,
        "reasoning": tokens.reasoning,
    }


def read_object(body: bytes) -> Document | None:
    """Return the JSON object of a body; None = it is none, or one of its objects has a key twice.

    Readers differ in which of the two counts, and nobody may ask for another model that way.
    """
    try:
        value = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice")
    return made


def read_answer(body: bytes) -> list[Document]:
    """Return the JSON objects of an answer: one, those of a list, or those of events; others are left out."""
    if not body.startswith(_EVENTS):
        with suppress(ValueError, RecursionError):
            value = json.loads(body)
            return [
                item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)
            ]
    return [event for line in body.splitlines() if line.startswith(_DATA) for event in _event(line)]


def _event(line: bytes) -> Iterator[Document]:
    """Yield the JSON object of a line of events, if it holds one."""
    with suppress(ValueError, RecursionError):
        value = json.loads(line[len(_DATA) :])
        if isinstance(value, dict):
            yield value
