"""Progress of a job: a redrawn block on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol, Self

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from benchflow_client.cli.tables import clean, flow, shorten
from benchflow_client.watch import AgentLine, WatchView, events, status_parts
from benchflow_client.wording import clock, ratio

__all__ = ["LiveProgress", "PlainProgress", "ProgressDisplay", "draw_view"]

_PERIOD_S = 0.25  # redrawn at most four times a second
_AGENT_LINES = 3  # lines of agents before the rest is counted only
_BAR_WIDTH = 29
_NAME_WIDTH = 24


class ProgressDisplay(Protocol):
    """Shows a job while it runs; a context manager."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen and give the terminal back."""
        ...

    def update(self, view: WatchView) -> None:
        """Show a newer state; may be called as often as one likes."""
        ...


class LiveProgress:
    """Redraws one block of a terminal.

    Args:
        console: A terminal.
        tick: Seconds of a clock that never goes back.
    """

    def __init__(self, console: Console, *, tick: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._tick = tick
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._view: WatchView | None = None
        self._drawn_at = float("-inf")

    def __enter__(self) -> Self:
        """Hide the cursor and begin to draw."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Draw the last state and show the cursor again."""
        self._draw()
        self._live.stop()

    def update(self, view: WatchView) -> None:
        """Draw a newer state, unless the last one was drawn a moment ago."""
        self._view = view
        if self._tick() - self._drawn_at >= _PERIOD_S:
            self._draw()

    def _draw(self) -> None:
        if self._view is None:
            return
        self._drawn_at = self._tick()
        lines = draw_view(self._view, width=self._console.width, is_ascii=not is_unicode(self._console))
        self._live.update(Text("\n", no_wrap=True, overflow="crop").join(lines), refresh=True)


class PlainProgress:
    """Writes a line when something changes, and one a minute.

    Args:
        write: Takes one line of text.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._last: WatchView | None = None

    def __enter__(self) -> Self:
        """Begin; nothing is written yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; nothing is written."""

    def update(self, view: WatchView) -> None:
        """Write the lines the change is worth."""
        for line in events(self._last, view):
            self._write(line)
        self._last = view


def is_unicode(console: Console) -> bool:
    """Return whether the console's encoding has the characters of a bar and a dash."""
    return console.encoding.lower().replace("_", "-").startswith("utf")


def draw_view(view: WatchView, *, width: int, is_ascii: bool = False) -> Iterator[Text]:
    """Yield the lines of the block, each at most `width` cells."""
    yield _bar_line(view, width, is_ascii=is_ascii)
    for line in flow(status_parts(view), width - 2):
        yield Text(f" {line}")
    for line in _agents(view.agents, width - 2):
        yield Text(f" {line}", style="dim")


def _bar_line(view: WatchView, width: int, *, is_ascii: bool) -> Text:
    eta = f"   eta {clock(view.eta_s)}" if view.eta_s is not None else ""
    right = f"  {view.finished}/{view.total}   {clock(view.elapsed_s)}{eta}"
    name = shorten(clean(view.job), min(_NAME_WIDTH, max(2, width - 3 - len(right))))
    room = min(_BAR_WIDTH, width - 4 - cell_len(name) - len(right))
    full, rest = _bar(view.fraction, max(0, room), is_ascii=is_ascii)
    line = Text(f" {name}  ")
    line.append(full, style="green")
    line.append(rest, style="dim")
    line.append(right)
    line.truncate(width)
    return line


def _bar(fraction: float, width: int, *, is_ascii: bool) -> tuple[str, str]:
    """Return the two parts of a bar; thick and thin, so that it needs no colour."""
    thick, half, thin = ("#", "#", "-") if is_ascii else ("━", "╸", "─")
    halves = int(fraction * width * 2)
    full = thick * (halves // 2) + half * (halves % 2)
    return full, thin * (width - len(full))


def _agents(agents: tuple[AgentLine, ...], width: int) -> Iterator[str]:
    pieces = [
        f"{shorten(clean(line.agent), _NAME_WIDTH)} {line.passed}/{line.counted} {ratio(line.score)}"
        for line in agents
    ]
    lines = list(flow(pieces, width, gap="        " if len(pieces) < 3 else "   "))
    yield from lines[:_AGENT_LINES]
    if len(lines) > _AGENT_LINES:
        yield f"{len(agents)} agents in all"
