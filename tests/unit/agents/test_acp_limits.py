"""What an agent of the Agent Client Protocol says costs no memory without bound and spoils no sum."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.agents.acp_session import AgentAnswerError, Ending, Limits, Session, connected
from benchflow_workers.agents.acp_trajectory import LIMIT_BYTES, Trajectory
from benchflow_workers.sandbox.output import CappedOutput

PART = "z" * (LIMIT_BYTES // 3)


class Agent:
    """A process that answers with given parts when it is told something."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.answers = list(answers)
        self.is_told = asyncio.Event()
        self.stderr = CappedOutput(0)

    async def read(self) -> bytes:
        await self.is_told.wait()
        return self.answers.pop(0) if self.answers else b""

    async def write(self, data: bytes) -> bool:
        self.is_told.set()
        return bool(data)

    async def wait(self) -> int:
        return 0


def chunk(content: Any) -> dict[str, Any]:
    return {"sessionUpdate": "agent_message_chunk", "content": content}


@pytest.mark.parametrize(
    "update",
    [
        {"sessionUpdate": "plan", "entries": [{"content": PART}]},
        chunk({"type": "image", "data": PART}),
        chunk({"text": 5, "data": PART}),
        {"sessionUpdate": "tool_call", "toolCallId": PART},
    ],
    ids=["plan", "image", "no-text", "id"],
)
def test_whatever_is_beyond_the_limit_is_left_out(update: dict[str, Any]) -> None:
    trajectory = Trajectory()
    trajectory.mark({"type": "permission", "option_id": PART})
    trajectory.mark({"type": "permission", "option_id": PART})
    trajectory.update(update)

    assert trajectory.n_left_out == 1


def test_pieces_of_text_count_for_more_than_their_characters() -> None:
    trajectory = Trajectory()
    trajectory.mark({"type": "permission", "option_id": "z" * (LIMIT_BYTES - 2000)})
    for _ in range(100):
        trajectory.update(chunk({"type": "text", "text": ""}))

    assert trajectory.n_left_out > 0


@pytest.mark.parametrize("error", ["boom", ["boom"], 7, True])
async def test_an_error_that_is_no_object_is_an_answer(error: Any) -> None:
    agent = Agent([json.dumps({"id": 0, "error": error}).encode() + b"\n"])
    trajectory = Trajectory()
    async with connected(agent, CappedOutput(0), trajectory) as connection:
        session = Session(connection, "s", "", {}, trajectory, AgentUsage())
        with pytest.raises(AgentAnswerError):
            await session.prompt("hello", Limits(time.monotonic() + 30, None))


async def test_a_number_of_tokens_that_cannot_be_true_is_unknown() -> None:
    usage = {"inputTokens": 10**400, "outputTokens": -1, "totalTokens": 7}
    agent = Agent([json.dumps({"id": 0, "result": {"usage": usage}}).encode() + b"\n"])
    trajectory = Trajectory()
    async with connected(agent, CappedOutput(0), trajectory) as connection:
        session = Session(connection, "s", "", {}, trajectory, AgentUsage())
        ending = await session.prompt("hello", Limits(time.monotonic() + 60, None))

    told = session.usage
    assert ending is Ending.ANSWERED
    assert (told.n_input_tokens, told.n_output_tokens, told.total_tokens) == (None, None, 7)
