"""Numbers as people read them."""

import pytest

from benchflow_client.wording import age, clock, money, name_some, plural, ratio, span, tokens


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.00"),
        (0.0, "0.00"),
        (0.4067, "0.41"),
        (0.9996, "0.9996"),
        (0.0004, "0.0004"),
        (1e-9, "0.000000"),
        (-0.5, "-0.50"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_ratio_never_rounds_to_a_whole_or_to_nothing(value, text):
    assert ratio(value) == text


def test_money_and_tokens_say_when_a_part_is_unknown():
    assert money(0.123) == "$0.12"
    assert money(0.0012) == "$0.0012"
    assert money(12345.6) == "$12,346"
    assert money(1.5, coverage=0.5) == "≥$1.50"
    assert money(None, coverage=0.0) == "–"
    assert tokens(812) == "812"
    assert tokens(4100) == "4.1k"
    assert tokens(2_600_000, coverage=0.5) == "≥2.6M"
    assert tokens(None) == "–"


def test_times_are_short():
    assert [clock(s) for s in (-1, 5, 754, 3723)] == ["0:00", "0:05", "12:34", "1:02:03"]
    assert [span(s) for s in (0.44, 16.2, 184, 7500, 300_000)] == ["0.4 s", "16 s", "3m04s", "2h05m", "3 d"]
    assert [age(s) for s in (-3, 12, 61, 7300, 260_000)] == ["0 s", "12 s", "1 min", "2 h", "3 d"]


def test_spans_never_show_sixty_seconds():
    assert span(59.7) == "1m00s"
    assert span(9.96) == "10 s"


def test_names_are_counted_beyond_the_first():
    assert name_some(["a", "b"]) == "a, b"
    assert name_some(["a", "b", "c", "d"], most=2) == "a, b (+2)"
    assert name_some(["a", "b"], total=9) == "a, b (+7)"
    assert (plural(1, "task"), plural(2, "task")) == ("1 task", "2 tasks")
