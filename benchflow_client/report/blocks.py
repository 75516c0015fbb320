"""Of what reports are made: tables and lines without a terminal.

The CLI draws these records and `--json` can dump them; nothing here prints. They are
named tuples because every command defines them at its start, and those are quick to define.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Tone = Literal["plain", "dim", "good", "warn", "bad"]
"""How a piece feels; a help for the eye only, never the only carrier of a meaning."""


class Column(NamedTuple):
    """A column of a table."""

    title: str = ""
    align: Literal["left", "right"] = "left"
    shrink: int = 0  # turn in which its texts are shortened in a narrow terminal; 0 = last of all
    short: str = ""  # title where the columns do not fit; empty = the same
    is_optional: bool = False  # left out where shorter texts are not enough, the last one first


class Row(NamedTuple):
    """One row; `notes` are lines below it, `tone` colours its first cell."""

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()
    tone: Tone = "plain"


class Table(NamedTuple):
    """Rows under columns; without any title the header is left out."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


class Line(NamedTuple):
    """A paragraph; further lines of it hang below the text, beside the label."""

    text: str
    label: str = ""
    tone: Tone = "plain"


Block = Table | Line
Report = tuple[Block, ...]
"""What is shown, top to bottom; an empty report shows nothing."""


def report_data(report: Report) -> list[dict[str, Any]]:
    """Return a report as plain JSON data."""
    return [_block_data(block) for block in report]


def _block_data(block: Block) -> dict[str, Any]:
    if isinstance(block, Line):
        return {"kind": "line", **block._asdict()}
    return {
        "kind": "table",
        "columns": [column._asdict() for column in block.columns],
        "rows": [row._asdict() for row in block.rows],
    }
