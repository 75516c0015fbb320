"""What may be told of a span; nothing here knows the libraries of OpenTelemetry.

Spans of an attempt are nested: trial, phase, an agent's turn, a call to its model. They hold
names and numbers, never what was asked or answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["CURRENT", "NO_TELEMETRY", "Attributes", "Done", "Span", "Telemetry"]

Attributes = Mapping[str, str | bool | int | float | Sequence[str] | None]
"""Names and values; one that is None is not told."""

SHARED_PREFIX: Final = "bf."
"""Begins the names of attributes that hold for all spans below one too."""


@dataclass(frozen=True, slots=True)
class Done:
    """A request to another program that is over.

    Attributes:
        name: Name of its span.
        attributes: What is told of it.
        started_ns: When it began, nanoseconds of the Unix clock.
        ended_ns: When it ended.
        error: Its kind of failure; empty = it ended well.
    """

    name: str
    attributes: Attributes
    started_ns: int
    ended_ns: int
    error: str = ""


class Span(Protocol):
    """Something that takes time; safe to use from any thread. No method blocks or raises."""

    @property
    def is_taken(self) -> bool:
        """Whether anybody takes it: else nothing need be told."""
        ...

    def begin(self, name: str, attributes: Attributes) -> Span:
        """Return a span below this one that begins now."""
        ...

    def record(self, done: Done) -> None:
        """Make a span below this one of a request that is over."""
        ...

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """End it now; only the first time counts.

        Args:
            attributes: What is told besides.
            error: Its kind of failure; empty = it ended well.
        """
        ...


class Telemetry(Protocol):
    """Takes the spans of a worker."""

    def begin(self, name: str, attributes: Attributes) -> Span:
        """Return a span that begins now and has none above it."""
        ...

    def close(self) -> None:
        """Hand over what is left, within a few seconds; safe to call twice."""
        ...


class _Nobody:
    """Takes nothing."""

    @property
    def is_taken(self) -> bool:
        return False

    def begin(self, name: str, attributes: Attributes) -> Span:
        del name, attributes
        return self

    def record(self, done: Done) -> None:
        del done

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        del attributes, error

    def close(self) -> None:
        pass


_NOBODY: Final = _Nobody()

NO_TELEMETRY: Final[Telemetry] = _NOBODY
"""Takes no spans."""

CURRENT: Final[ContextVar[Span]] = ContextVar("span", default=_NOBODY)
"""The span that what runs now belongs to; it follows tasks and threads as contexts do."""
