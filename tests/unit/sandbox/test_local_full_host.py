"""A host that is full is no fault of the program that was to be started."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.local.execution import read_end
from benchflow_workers.sandbox.local.holder_client import Channel, Holder


@pytest.fixture
def ending() -> Iterator[asyncio.Future[dict[str, Any]]]:
    """Return what a command's answers arrive in."""
    loop = asyncio.new_event_loop()
    yield loop.create_future()
    loop.close()


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Return a holder that is alive: the process it watches is this one."""
    control, life = socket.socketpair()
    pidfd = os.pidfd_open(os.getpid())
    yield Holder(control, Channel(life), pidfd, os.getpid())
    os.close(pidfd)
    control.close()
    life.close()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_command_that_no_process_was_left_for_is_tried_again(
    ending: asyncio.Future[dict[str, Any]], holder: Holder, number: int
) -> None:
    ending.set_result({"error": "no process could be made", "errno": number, "exit": 126})

    with pytest.raises(SandboxError, match="no room for another process") as caught:
        read_end(ending, holder)

    assert caught.value.code == "sandbox.exec_failed"


def test_command_that_may_not_be_started_says_so_as_a_shell_does(
    ending: asyncio.Future[dict[str, Any]], holder: Holder
) -> None:
    ending.set_result({"error": "permission denied", "errno": errno.EACCES, "exit": 126})

    assert read_end(ending, holder) == (126, "permission denied\n")
