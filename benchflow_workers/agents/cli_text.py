"""Programs whose output is text for people: what they print is what they say, their exit code tells the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_events import chunk

__all__ = ["plain_text"]


class PlainText:
    """Lines of text."""

    @property
    def is_plain(self) -> bool:
        """Its output is text."""
        return True

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the line as something that was said."""
        yield chunk(str(event.get("text")))

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return None: text says nothing for sure."""
        del event
        return None

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return False: the exit code tells it."""
        del event
        return False

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return nothing: it does not say."""
        del event
        return {}


def plain_text() -> CliAgent:
    """Return the agent."""
    return CliAgent(PlainText())
