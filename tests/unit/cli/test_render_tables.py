"""Fitting text into columns: nothing too wide, nothing that steers the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from benchflow_client.cli.tables import clean, flow, lay_out, shorten, wrap
from benchflow_client.report import Column, Line, Row, Table

JOBS = Table(
    columns=(
        Column("job", shrink=2),
        Column("trials", "right"),
        Column("mean reward", "right", short="reward"),
        Column("waiting for", shrink=1),
    ),
    rows=(Row(("calm-otter-7f3a", "8/10", "0.41", "slots")),),
)


def drawn(*blocks, width=80, is_wrapped=True):
    return [line.plain for line in lay_out(blocks, width=width, is_wrapped=is_wrapped)]


def test_table_is_drawn_with_two_spaces_between_columns_and_none_at_the_end():
    assert drawn(JOBS) == [
        " job              trials  mean reward  waiting for",
        " calm-otter-7f3a    8/10         0.41  slots",
    ]


def test_narrow_table_takes_short_titles_then_shortens_the_unimportant_texts():
    long = JOBS._replace(rows=(Row(("calm-otter-7f3a", "8/10", "0.41", "paused by ana: quota is used up")),))

    assert drawn(long, width=60) == [
        " job              trials  reward  waiting for",
        " calm-otter-7f3a    8/10    0.41  paused by ana…a is used up",
    ]
    assert drawn(long, width=42) == [
        " job           trials  reward  waiting for",
        " calm-o…-7f3a    8/10    0.41  pause…ed up",
    ]


def test_columns_are_left_out_before_a_number_is_cut():
    table = Table(
        (Column("agent", shrink=1), Column("score", "right"), Column("cost", "right", is_optional=True)),
        (Row(("a-long-agent-name", "0.41234", "$12.00")),),
    )

    assert drawn(table, width=25) == [" agent      score    cost", " a-l…ame  0.41234  $12.00"]
    assert drawn(table, width=24) == [" agent             score", " a-long-…t-name  0.41234"]
    assert drawn(table, width=12) == [" ag…t  score", " a-…e  0.…34"]


def test_without_titles_there_is_no_header():
    table = Table((Column(align="right"), Column()), (Row(("12", "a")), Row(("3", "b"))))

    assert drawn(table) == [" 12  a", "  3  b"]


def test_notes_hang_below_the_second_column():
    table = Table((Column(align="right"), Column()), (Row(("12", "a"), notes=("next: do this and that",)),))

    assert drawn(table, width=20) == [" 12  a", "     next: do this", "     and that"]


cells = st.text(st.characters(codec="utf-8"), max_size=90)


@given(st.lists(st.tuples(cells, cells, cells, cells), min_size=1, max_size=4), st.integers(60, 120))
def test_no_line_of_a_table_is_ever_too_wide(rows, width):
    table = JOBS._replace(rows=tuple(Row(row) for row in rows))

    for line in lay_out((table,), width=width, is_wrapped=True):
        assert cell_len(line.plain) <= width
        assert line.plain.isprintable() or "\u200d" in line.plain or not line.plain.isascii()


@given(st.text(max_size=60), st.integers(0, 40))
def test_shortened_text_fits_and_keeps_both_ends(text, width):
    short = shorten(text, width)

    assert cell_len(short) <= width
    if short != text and width >= 2:
        assert "…" in short
        assert text.startswith(short.partition("…")[0])


def test_shortening_leaves_out_the_middle():
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("abcdefghij", 1) == "…"
    assert shorten("abc", 3) == "abc"
    assert shorten("日本語日本語", 7) == "日…本語"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\tb\r\nc", "a b  c"),
        ("\x9b2J", "\\x9b2J"),
        ("user\u202etxt.exe", "user\\u202etxt.exe"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("bad\udc80byte", "bad\\udc80byte"),
        ("👩\u200d💻 [agent] ok", "👩\u200d💻 [agent] ok"),
    ],
)
def test_text_from_outside_cannot_steer_the_terminal(text, shown):
    assert clean(text) == shown


def test_paragraphs_hang_beside_their_label():
    assert drawn(Line("one two three four five", label="error"), width=20) == [
        "error  one two three",
        "       four five",
    ]


def test_lines_break_between_items_before_they_break_inside_one():
    assert list(wrap("watch: bench watch x · stop: bench cancel x", 40)) == [
        "watch: bench watch x ·",
        "stop: bench cancel x",
    ]


def test_commands_in_backticks_and_long_paths_stay_whole():
    assert list(wrap("Start `bench up --now`, or not.", 20)) == ["Start", "`bench up --now`, or", "not."]
    assert list(wrap("see /a/very/long/path/to/a/file now", 12)) == [
        "see",
        "/a/very/long/path/to/a/file",
        "now",
    ]
    assert list(wrap("`a b c d e f g`", 8)) == ["`a b c d", "e f g`"]


def test_own_line_ends_are_kept_and_logs_are_not_wrapped():
    assert list(wrap("a\nb", 80, hanging=3)) == ["a", "   b"]
    assert drawn(Line("word " * 40 + "end", label="error"), is_wrapped=False) == [f"error  {'word ' * 40}end"]


def test_pieces_flow_into_lines():
    assert list(flow(["running 4", "waiting 3", "passed 9"], 24)) == ["running 4   waiting 3", "passed 9"]
    assert list(flow(["a" * 30], 9)) == ["aaaa…aaaa"]
    assert list(flow([], 9)) == []
