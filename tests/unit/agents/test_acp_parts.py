"""Lines, events and errors of the Agent Client Protocol, whatever an agent sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_workers.agents.acp_errors import failure_of_words
from benchflow_workers.agents.acp_lines import REQUEST_LIMIT, LineTransport
from benchflow_workers.agents.acp_trajectory import LIMIT_BYTES, MAX_EVENTS, Trajectory
from benchflow_workers.agents.lines import LINE_LIMIT_BYTES
from benchflow_workers.sandbox.output import CappedOutput

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=10,
)
KINDS = st.sampled_from([
    "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan", "usage_update", "x",
])  # fmt: skip
UPDATES = st.fixed_dictionaries(
    {"sessionUpdate": KINDS | JSON},
    optional={"content": JSON, "toolCallId": JSON, "status": JSON, "title": JSON, "rawInput": JSON},
)


class Pipe:
    """A process that prints given parts and keeps what it is told."""

    def __init__(self, parts: Sequence[bytes], *, is_open: bool = True) -> None:
        self.parts = list(parts)
        self.told = b""
        self.stderr = CappedOutput(0)
        self.is_open = is_open

    async def read(self) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    async def write(self, data: bytes) -> bool:
        self.told += data
        return self.is_open

    async def wait(self) -> int:
        return 0


async def received(parts: Sequence[bytes]) -> tuple[list[dict[str, Any]], bytes]:
    noise = CappedOutput(1 << 20)
    transport = LineTransport(Pipe(parts), noise)
    messages = []
    while (message := await transport.receive()) is not None:
        messages.append(message)
    return messages, noise.kept()


@given(st.lists(st.integers(1, 40), max_size=30), st.booleans())
async def test_messages_do_not_depend_on_how_the_stream_is_cut(sizes: list[int], has_end: bool) -> None:
    stream = b'banner\n{"id":1,"result":{"text":"\xc3\xbc"}}\r\n\n  {"method":"session/update","params":{}}\n{"half'
    stream += b"\n" if has_end else b""
    parts, rest = [], stream
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    parts = [part for part in (*parts, rest) if part]

    messages, noise = await received(parts)

    assert messages == [
        {"id": 1, "result": {"text": "ü"}},
        {"method": "session/update", "params": {}},
    ]
    assert noise == b'banner\n\n{"half\n'


@pytest.mark.parametrize(
    "line",
    [
        b"[1, 2]", b'"text"', b"{}", b'{"id": 1}', b'{"id": [1], "result": 1}', b'{"id": true, "result": 1}',
        b'{"id": 1, "method": "initialize", "params": {}}',
        b'{"method": 7}', b"\xff\xfe{", b'{"result":' + b"[" * 200 + b"]" * 200 + b"}", b"[" * 100_000,
    ],
)  # fmt: skip
async def test_a_line_that_is_no_message_is_noise(line: bytes) -> None:
    messages, noise = await received([line + b"\n", b'{"id":1,"result":null}\n'])

    assert messages == [{"id": 1, "result": None}]
    assert noise == line + b"\n"


async def test_a_line_that_is_too_long_is_left_out_and_the_next_one_read() -> None:
    half = b"y" * (LINE_LIMIT_BYTES // 2 + 1)

    messages, noise = await received([b'{"id":1,"result":"', half, half, b'"}\n{"id":2,"result":0}\n'])

    assert messages == [{"id": 2, "result": 0}]
    assert noise == b"[a line of %d bytes was left out]\n" % (2 * len(half) + 20)


async def test_a_message_is_one_line_and_a_closed_agent_is_told() -> None:
    pipe = Pipe([])
    await LineTransport(pipe, CappedOutput(0)).send({"text": "two\nlines"})
    assert pipe.told == b'{"text":"two\\nlines"}\n'

    with pytest.raises(ConnectionError):
        await LineTransport(Pipe([], is_open=False), CappedOutput(0)).send({})


async def test_an_agent_that_does_not_read_answers_is_not_listened_to() -> None:
    request = b'{"id":1,"method":"fs/read_text_file"}\n'
    transport = LineTransport(Pipe([request * (REQUEST_LIMIT + 1)]), CappedOutput(0))
    for _ in range(REQUEST_LIMIT):
        await transport.receive()

    waiting = asyncio.ensure_future(transport.receive())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done

    await transport.send({"id": 1, "error": {}})
    assert (await waiting or {})["id"] == 1


@given(st.lists(UPDATES, max_size=20))
def test_any_update_leaves_events_that_are_json(updates: list[dict[str, Any]]) -> None:
    trajectory = Trajectory()
    for update in updates:
        trajectory.update(update)

    events = trajectory.events()

    json.dumps(events, allow_nan=False, ensure_ascii=False).encode()
    assert sum(event["type"] == "tool_call" for event in events) == trajectory.n_tool_calls


def chunk(text: str, kind: str = "agent_message_chunk") -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def test_chunks_of_one_kind_in_a_row_are_one_event() -> None:
    trajectory = Trajectory()
    for update in (chunk("a"), chunk("b"), chunk("t", "agent_thought_chunk"), chunk("c")):
        trajectory.update(update)

    assert [(event["type"], event["text"]) for event in trajectory.events()] == [
        ("agent_message", "ab"),
        ("agent_thought", "t"),
        ("agent_message", "c"),
    ]


def test_content_that_is_no_text_is_kept_as_it_is() -> None:
    trajectory = Trajectory()
    image = {"type": "image", "mimeType": "image/png", "data": "eA=="}
    trajectory.update({"sessionUpdate": "agent_message_chunk", "content": image})

    assert trajectory.events()[0]["content"] == image


def test_a_tool_call_is_one_event_however_often_it_changes() -> None:
    trajectory = Trajectory()
    trajectory.update({"sessionUpdate": "tool_call_update", "toolCallId": "t", "title": "ls"})
    assert trajectory.pending() == ("t",)
    trajectory.update({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "failed"})

    (event,) = trajectory.events()

    assert (event["title"], event["status"], trajectory.pending()) == ("ls", "failed", ())


def test_a_running_tool_has_three_times_as_long() -> None:
    trajectory = Trajectory()
    trajectory.update({"sessionUpdate": "tool_call", "toolCallId": "t", "status": "in_progress"})
    assert trajectory.idle_since(10) - trajectory.last_active == pytest.approx(30, abs=1)

    trajectory.update({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"})
    assert trajectory.idle_since(10) - trajectory.last_active == pytest.approx(10)


def test_what_finds_no_room_is_counted() -> None:
    trajectory = Trajectory()
    for number in range(MAX_EVENTS + 5):
        trajectory.mark({"type": "permission", "option_id": str(number)})

    events = trajectory.events()

    assert len(events) == MAX_EVENTS + 1
    assert events[-1] == {"type": "truncated", "n_left_out": 5}


def test_text_beyond_the_limit_is_left_out() -> None:
    trajectory = Trajectory()
    for _ in range(3):
        trajectory.update(chunk("z" * (LIMIT_BYTES // 3)))

    assert trajectory.n_left_out == 1


@pytest.mark.parametrize(
    ("words", "data", "code", "wait_s"),
    [
        ("provider rate limited (HTTP 429), retry-after: 2", None, "agent.rate_limited", 2.0),
        ("Too Many Requests", {"headers": {"retry-after": "30"}}, "agent.rate_limited", 30.0),
        ("429 insufficient_quota", None, "agent.usage_limit", None),
        ("401 Unauthorized", None, "agent.provider_auth", None),
        ("Internal error", {"details": "invalid x-api-key"}, "agent.provider_auth", None),
        ("400 prompt is too long: 210000 tokens", None, "agent.context_overflow", None),
        ("400 invalid_request_error", None, "agent.rejected", None),
        ("503 Service Unavailable", None, "agent.provider_failed", None),
        ("Internal error", None, "agent.protocol", None),
    ],
)
def test_an_agents_words_tell_whose_fault_it_was(
    words: str, data: Any, code: str, wait_s: float | None
) -> None:
    failure = failure_of_words(words, data)

    assert (failure.code, failure.retry_after_s) == (code, wait_s)
