"""The trajectory a script agent writes, as far as it can be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_workers.agents import events
from benchflow_workers.agents.events import final_message, parse_events
from benchflow_workers.agents.turn import agent_run
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import Completed


def test_each_line_is_an_event() -> None:
    content = (
        b'{"type": "tool_call", "name": "ls"}\n\n  \r\n{"type": "agent_message", "text": "\xc3\xa9"}\r\n'
    )

    assert parse_events(content) == [
        {"type": "tool_call", "name": "ls"},
        {"type": "agent_message", "text": "é"},
    ]


def test_a_line_without_its_end_is_read() -> None:
    assert parse_events(b'{"type": "a"}') == [{"type": "a"}]


def test_a_bad_line_costs_that_line_only() -> None:
    lines = [
        b'{"a": 1',
        b"[1]",
        b"3",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"{}",
        b'{"b": 2}',
    ]

    parsed = parse_events(b"\n".join(lines))

    assert [event.get("line") for event in parsed] == [1, 2, 3, 4, 5, 6, 7, None]
    assert parsed[0] == {"type": "unreadable", "line": 1, "size_bytes": 7}
    assert parsed[-1] == {"b": 2}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert parse_events(b'{"text": "\xff"}') == [{"text": "\ufffd"}]


def test_deep_nesting_is_unreadable_and_no_crash() -> None:
    line = b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"

    assert parse_events(line) == [{"type": "unreadable", "line": 1, "size_bytes": len(line)}]


def test_a_line_of_ten_megabytes_is_read_and_one_beyond_the_limit_is_not() -> None:
    large = b'{"text": "' + b"x" * (10 << 20) + b'"}'
    too_large = b'{"text": "' + b"x" * events.LINE_LIMIT_BYTES + b'"}'

    first, second = parse_events(large + b"\n" + too_large)

    assert len(first["text"]) == 10 << 20
    assert second["type"] == "unreadable"


def test_endless_events_are_cut_with_a_note() -> None:
    parsed = parse_events(b'{"n": 1}\n' * (events.MAX_EVENTS + 5))

    assert len(parsed) == events.MAX_EVENTS + 1
    assert parsed[-1] == {"type": "truncated", "line": events.MAX_EVENTS + 1}


@given(st.binary(max_size=300))
def test_any_bytes_become_events_that_can_be_written(content: bytes) -> None:
    for event in parse_events(content):
        json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8")


@given(st.binary(max_size=300), st.integers(min_value=1, max_value=50))
def test_any_output_has_a_tail_that_can_be_written(output: bytes, limit: int) -> None:
    text = tail_text(output, limit_chars=limit)

    text.encode("utf-8")
    assert len(text) <= limit
    assert all(character.isprintable() or character in "\t\n" or ord(character) > 126 for character in text)


def test_a_tail_has_whole_lines_where_more_than_one_fits() -> None:
    assert tail_text(b"alpha\nbeta\ngamma\n", limit_chars=12) == "beta\ngamma"
    assert tail_text(b"x" * 50, limit_chars=12) == "x" * 12


def test_a_gap_is_marked_in_its_place() -> None:
    assert with_gap_marked(b"aabb", 4) == b"aabb"
    assert with_gap_marked(b"aabb", 10) == b"aa\n[... 6 bytes truncated ...]\nbb"


def test_a_turn_ended_by_its_deadline_has_no_exit_code() -> None:
    done = Completed(137, b"half", b"", 4, 0, timed_out=True, oom_killed=False, duration_s=5.0)

    run = agent_run(done, kind="script", command="/bot")

    assert run.exit_code is None
    assert run.timed_out
    assert run.log == b"half"
    assert run.events == ({"type": "script", "command": "/bot", "return_code": None, "stdout": "half"},)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), ""),
        (({"type": "agent_message", "text": "One."}, {"type": "agent_message", "text": "Two."}), "Two."),
        (({"type": "agent_message", "text": "One."}, {"type": "tool_call", "title": "ls"}), "One."),
        (({"type": "agent_message", "text": "One."}, {"type": "agent_message", "text": " \n"}), "One."),
        (({"type": "agent_message", "text": None}, {"type": "agent_thought", "text": "Hm."}), ""),
        (({"type": "script", "command": "./bot", "stdout": "42\n"},), "42\n"),
    ],
)
def test_what_an_agent_said_last_is_its_last_message_or_what_its_program_printed(
    events: tuple[dict[str, object], ...], said: str
) -> None:
    assert final_message(events) == said
