"""A host that is full is no fault of the program that was to be started."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.local.execution import _read_end


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
async def test_command_that_no_process_was_left_for_is_tried_again(number: int) -> None:
    answer: dict[str, Any] = {"error": "no process could be made", "errno": number, "exit": 126}
    ending: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    ending.set_result(answer)

    with pytest.raises(SandboxError, match="no room for another process") as caught:
        _read_end(ending, None)  # type: ignore[arg-type]

    assert caught.value.code == "sandbox.exec_failed"


async def test_command_that_may_not_be_started_says_so_as_a_shell_does() -> None:
    ending: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    ending.set_result({"error": "permission denied", "errno": errno.EACCES, "exit": 126})

    assert _read_end(ending, None) == (126, "permission denied\n")  # type: ignore[arg-type]
