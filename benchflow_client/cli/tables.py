"""Fits reports into the columns of a terminal; decides spaces and line ends, never prints."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from benchflow_client.report import Column, Line, Report, Row, Table, Tone

__all__ = ["clean", "flow", "lay_out", "shorten", "wrap"]

STYLES: dict[Tone, str] = {"plain": "", "dim": "dim", "good": "green", "warn": "yellow", "bad": "bold red"}
"""Colour of a tone, as rich names it."""

_GAP = "  "
_MARGIN = " "
_LABEL_WIDTH = 7
_NARROW = 11  # what a column that may shrink keeps at first: enough for `calm-…-7f3a`
_NARROWER = 7  # what it keeps before a column is left out
_NARROWEST = 4  # what any column keeps at last, numbers too
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # Unicode categories that could move a cursor
_JOINER = "\u200d"  # part of many emoji; harmless
_DOT = " · "  # between the items of a line
_WORD = re.compile(r"`[^`\n]*`\S*|\S+")  # a command in backticks stays on one line if it fits


def clean(text: str) -> str:
    """Return text that cannot steer a terminal: control and direction characters become escapes."""
    if text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def shorten(text: str, width: int) -> str:
    """Return text of at most `width` cells, with ``…`` in the middle where something is left out."""
    if cell_len(text) <= width:
        return text
    if width < 2:
        return "…"[:width]
    head = _take(text, width // 2)
    tail = _take(text[::-1], width - 1 - cell_len(head))[::-1]
    return f"{head}…{tail}"


def wrap(text: str, width: int | None, *, hanging: int = 0) -> Iterator[str]:
    """Yield the lines of a paragraph; all but the first are indented by `hanging` cells.

    Args:
        text: The paragraph; its own line ends are kept.
        width: Cells of a line, indent included; None = do not wrap. A longer word is not broken,
            so that a path can still be copied.
        hanging: Cells the caller puts in front of the first line.
    """
    indent = ""
    for part in text.split("\n"):
        for line in _wrap_part(clean(part), width, hanging):
            yield indent + line
            indent = " " * hanging


def flow(pieces: Iterable[str], width: int, *, gap: str = "   ") -> Iterator[str]:
    """Yield lines of whole pieces, as many to a line as fit."""
    line = ""
    for piece in map(clean, pieces):
        joined = f"{line}{gap}{piece}" if line else piece
        if line and cell_len(joined) > width:
            yield line
            joined = piece
        line = shorten(joined, width)
    if line:
        yield line


def lay_out(report: Report, *, width: int, is_wrapped: bool) -> Iterator[Text]:
    """Yield the lines of a report.

    Args:
        report: What to show.
        width: Cells of a line; no line of a table is longer.
        is_wrapped: Whether paragraphs are wrapped, too; not so in a log, where a search wants them whole.
    """
    for block in report:
        if isinstance(block, Table):
            yield from _table(block, width, is_wrapped=is_wrapped)
        else:
            yield from _line(block, width if is_wrapped else None)


def _visible(char: str) -> str:
    if char in {"\t", "\n", "\r"}:
        return " "
    if char == _JOINER or unicodedata.category(char) not in _INVISIBLE:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _take(text: str, width: int) -> str:
    used = 0
    for position, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:position]
    return text


def _wrap_part(text: str, width: int | None, hanging: int) -> Iterator[str]:
    if width is None or hanging + cell_len(text) <= width:
        yield text
        return
    line = ""
    for piece in _pieces(text, width - hanging):
        joined = f"{line} {piece}" if line else piece
        if line and hanging + cell_len(joined) > width:
            yield line
            joined = piece
        line = joined
    yield line


def _pieces(text: str, room: int) -> Iterator[str]:
    """Yield what a line break must not split: items between dots, commands in backticks, words."""
    items = text.split(_DOT)
    for number, item in enumerate(items):
        whole = item if number == len(items) - 1 else f"{item}{_DOT.rstrip()}"
        yield from [whole] if cell_len(whole) <= room and len(items) > 1 else _words(whole, room)


def _words(text: str, room: int) -> Iterator[str]:
    for word in _WORD.findall(text):
        yield from [word] if cell_len(word) <= room else word.split()


def _line(line: Line, width: int | None) -> Iterator[Text]:
    label = f"{line.label:<{_LABEL_WIDTH - 2}}{_GAP}" if line.label else ""
    style = STYLES[line.tone]
    body = style if line.tone == "dim" or not line.label else ""  # a label alone carries a colour
    for number, piece in enumerate(wrap(line.text, width, hanging=cell_len(label))):
        text = Text()
        if number == 0:
            text.append(clean(label), style=style)
        text.append(piece, style=body)
        text.rstrip()
        yield text


def _table(table: Table, width: int, *, is_wrapped: bool) -> Iterator[Text]:
    notes = [row.notes for row in table.rows]
    columns, rows, widths = _fit(table, width)
    titles = tuple(column.title for column in columns)
    if any(titles):
        yield _row_text(columns, Row(titles), widths, header=True)
    indent = len(_MARGIN) + widths[0] + len(_GAP)
    for row, below in zip(rows, notes, strict=True):
        yield _row_text(columns, row, widths)
        for note in below:
            for line in wrap(note, width if is_wrapped else None, hanging=indent):
                yield Text(" " * indent + line.lstrip())


def _fit(table: Table, width: int) -> tuple[Sequence[Column], Sequence[Row], list[int]]:
    """Return the columns there is room for, their texts, and the cells of each.

    First come short titles, then shorter names, then fewer columns; a number is cut last of all.
    """
    columns: Sequence[Column] = table.columns
    rows: Sequence[Row] = [row._replace(cells=tuple(map(clean, row.cells))) for row in table.rows]
    if _total(_widths(columns, rows)) > width:
        columns = [column._replace(title=column.short or column.title) for column in columns]
    widths = _shrink(columns, _widths(columns, rows), width)
    while _total(widths) > width and any(column.is_optional for column in columns):
        last = max(position for position, column in enumerate(columns) if column.is_optional)
        columns = [column for position, column in enumerate(columns) if position != last]
        rows = [row._replace(cells=row.cells[:last] + row.cells[last + 1 :]) for row in rows]
        widths = _shrink(columns, _widths(columns, rows), width)
    return columns, rows, _narrow(widths, range(len(columns)), width, floor=_NARROWEST)


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> list[int]:
    """Shorten the texts that may be, in their turns: the widest of them first."""
    turns = sorted({column.shrink for column in columns if column.shrink})
    for floor in (_NARROW, _NARROWER):
        for turn in turns:
            allowed = [position for position, column in enumerate(columns) if 0 < column.shrink <= turn]
            widths = _narrow(widths, allowed, width, floor=floor)
    return widths


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(cell_len(column.title), *(cell_len(row.cells[position]) for row in rows), 0)
        for position, column in enumerate(columns)
    ]


def _total(widths: Sequence[int]) -> int:
    return len(_MARGIN) + sum(widths) + len(_GAP) * (len(widths) - 1)


def _narrow(widths: Sequence[int], allowed: Sequence[int], width: int, *, floor: int) -> list[int]:
    narrowed = list(widths)
    while _total(narrowed) > width:
        widest = max(allowed, key=lambda position: narrowed[position])
        if narrowed[widest] <= floor:
            break
        narrowed[widest] -= 1
    return narrowed


def _row_text(columns: Sequence[Column], row: Row, widths: Sequence[int], *, header: bool = False) -> Text:
    text = Text(_MARGIN, style="bold" if header else "")
    for position, (column, cell, width) in enumerate(zip(columns, row.cells, widths, strict=True)):
        shown = shorten(cell, width)
        space = " " * (width - cell_len(shown))
        padded = space + shown if column.align == "right" else shown + space
        text.append(_GAP if position else "")
        text.append(padded, style=STYLES[row.tone] if position == 0 else "")
    text.rstrip()
    return text
