"""A `.env` file: what people write in it, and how a wrong line is told without quoting it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.tasks.env_file import EnvLineError, read_env_lines


def read(text: str) -> dict[str, str]:
    return read_env_lines(text, {"HOME": "/root"}.get)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("KEY=plain", "plain"),
        ("export KEY = spaced words ", "spaced words"),
        ("KEY=", ""),
        ("KEY=value # a comment", "value"),
        ("KEY=a#b", "a#b"),
        ("KEY='pa$$ #word'", "pa$$ #word"),
        ('KEY="a\\nb \\"c\\"" # a comment', 'a\nb "c"'),
        ("KEY=$HOME/x", "/root/x"),
        ("KEY=${UNSET:-other}", "other"),
        ("KEY=a=b==", "a=b=="),
        ("KEY=wörter", "wörter"),
    ],
)
def test_value_of_a_line(line: str, value: str) -> None:
    assert read(line) == {"KEY": value}


def test_comments_empty_lines_and_what_windows_adds_set_nothing() -> None:
    assert read("\ufeff# a comment\r\n\r\n  \r\nA=1\r\n  # B=2\r\nC=3") == {"A": "1", "C": "3"}


def test_value_in_quotes_may_have_several_lines() -> None:
    text = "PEM=\"-----BEGIN\nab=c\n-----END\"\nRAW='x\n\ny'\nLAST=1\n"

    assert read(text) == {"PEM": "-----BEGIN\nab=c\n-----END", "RAW": "x\n\ny", "LAST": "1"}


def test_last_of_several_lines_counts_and_later_ones_may_refer_to_earlier_ones() -> None:
    assert read("A=1\nA=2\nB=${A}0\n") == {"A": "2", "B": "20"}


@pytest.mark.parametrize(
    ("text", "number", "reason"),
    [
        ("A=1\nsk-secret-text\n", 2, "not of the form NAME=VALUE"),
        ("# fine\n\n9KEY=sk-secret-text", 3, "not of the form NAME=VALUE"),
        ("A='two\nlines'\nB=\"sk-secret-text\nC=1\n", 3, "never closed"),
        ("A='sk'-secret-text\n", 1, "something follows the quote"),
        ("A=sk-$secret-text\n", 1, "single quotes"),
        ("A=sk-$-secret-text\n", 1, "single quotes"),
    ],
)
def test_wrong_line_is_told_by_its_number_and_never_quoted(text: str, number: int, reason: str) -> None:
    with pytest.raises(EnvLineError, match=reason) as caught:
        read(text)

    assert caught.value.number == number
    assert "secret" not in str(caught.value)


@given(st.text(alphabet="AB=\"'$\\{}#\n\r x", max_size=60))
def test_any_text_is_read_or_has_a_line_that_is_wrong(text: str) -> None:
    try:
        names, wrong = set(read(text)), None
    except EnvLineError as error:
        names, wrong = set[str](), error.number

    assert wrong is None or 1 <= wrong <= text.count("\n") + 1
    assert all(set(name) <= set("ABx") for name in names)
