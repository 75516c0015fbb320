"""One command in a sandbox: its streams, its deadline, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Completed
from benchflow_workers.sandbox.holder.killing import TAG
from benchflow_workers.sandbox.local.cgroups import ControlGroup
from benchflow_workers.sandbox.local.holder_client import Channel, Holder, lost
from benchflow_workers.sandbox.output import CappedOutput

_CHUNK_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_DRAIN_S = 0.5  # how long output of background children is waited for after the command's end
_KILL_S = 30.0  # how long the holder tries to kill a tree; thousands of processes take a loaded host seconds
_HOST_IS_FULL = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
_ANSWER_S = 10.0  # how long an answer may take on top of what it does


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every command of a sandbox shares.

    Attributes:
        env: Variables of the image and of the spec.
        workdir: Folder of commands that name none.
        rlimits: Resource limits that stand in for control groups.
        has_users: Commands may run as other users than root.
        group: Control groups of the sandbox.
    """

    env: Mapping[str, str]
    workdir: str
    rlimits: Mapping[str, int]
    has_users: bool
    group: ControlGroup


class _Stream:
    """Reads one output pipe into a capped buffer."""

    def __init__(self, limit_bytes: int) -> None:
        self.output = CappedOutput(limit_bytes)
        self._fd, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        with contextlib.suppress(OSError):  # above the user's share of pipe memory: smaller is only slower
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if data:
            self.output.write(data)
        else:
            self._loop.remove_reader(self._fd)
            if not self.ended.done():
                self.ended.set_result(None)

    def give_away(self) -> None:
        """Close this side's copy of the write end, so that the pipe ends with the command."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Stop reading."""
        self.give_away()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.ended.cancel()


async def run(holder: Holder, command: Command, around: Surroundings) -> Completed:
    """Run a command to its end or deadline.

    Raises:
        SandboxError: `sandbox.lost`, or `sandbox.exec_failed` when its end cannot be learnt.
    """
    started, kills_before = time.monotonic(), around.group.oom_kills()
    tag = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        channel = holder.ask(b"e")
        stack.callback(channel.close)
        out, err = _Stream(command.output_limit_bytes), _Stream(command.output_limit_bytes)
        stack.callback(out.close)
        stack.callback(err.close)
        ending = asyncio.ensure_future(_talk(channel, command, around, _Wiring(tag, out, err)))
        is_timed_out = await _wait(ending, command.timeout_s, holder, tag)
        exit_code, reason = read_end(ending, holder)
        await asyncio.wait({out.ended, err.ended}, timeout=_DRAIN_S)
        if reason:
            err.output.write(reason.encode("utf-8", "surrogateescape"))
        return Completed(
            exit_code=exit_code,
            stdout=out.output.kept(),
            stderr=err.output.kept(),
            stdout_bytes=out.output.total_bytes,
            stderr_bytes=err.output.total_bytes,
            timed_out=is_timed_out,
            oom_killed=exit_code != 0 and around.group.oom_kills() > kills_before,
            duration_s=time.monotonic() - started,
        )


async def _wait(ending: asyncio.Future[dict[str, Any]], timeout_s: float, holder: Holder, tag: str) -> bool:
    """Wait for a command's end; kill it at its deadline, or when the wait is cancelled.

    Returns:
        Whether the deadline came first.
    """
    try:
        await asyncio.wait({ending}, timeout=timeout_s)
        if ending.done():
            return False
        await kill(holder, {"tag": tag})
        await asyncio.wait({ending}, timeout=_ANSWER_S)
        return True
    finally:
        if not ending.done():
            ending.cancel()
            await _abandon(holder, tag)
            await asyncio.wait(
                {ending}, timeout=_ANSWER_S
            )  # it must let go of the channel before that closes


@dataclass(frozen=True, slots=True)
class _Wiring:
    tag: str
    out: _Stream
    err: _Stream


async def _talk(channel: Channel, command: Command, around: Surroundings, wiring: _Wiring) -> dict[str, Any]:
    """Send the request and collect the answers until the channel ends."""
    request = request_of(command, around, wiring.tag, has_stdin=command.stdin is not None)
    fds = [wiring.out.writer, wiring.err.writer]
    with contextlib.ExitStack() as stack:
        if command.stdin is not None:
            fds.append(_file_of(command.stdin))
            stack.callback(os.close, fds[-1])
        await channel.send(request, fds)
        wiring.out.give_away()
        wiring.err.give_away()
    return await answers_of(channel)


def request_of(command: Command, around: Surroundings, tag: str, *, has_stdin: bool) -> dict[str, Any]:
    """Return what the holder is asked to run; every process of it carries the tag."""
    return {
        "argv": list(command.argv),
        "user": str(command.user),
        "workdir": command.workdir or around.workdir,
        "env": {**around.env, **command.env, TAG: tag},
        "rlimits": dict(around.rlimits),
        "has_users": around.has_users,
        "has_stdin": has_stdin,
    }


async def answers_of(channel: Channel) -> dict[str, Any]:
    """Return all the holder says of a command, complete when the command ended."""
    answers: dict[str, Any] = {}
    while (answer := await channel.receive()) is not None:
        answers.update(answer)
    return answers


def _file_of(data: bytes) -> int:
    """Return a descriptor of an unnamed file in memory: unlike a pipe it needs nobody to feed it."""
    fd = os.memfd_create("stdin")
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_end(ending: asyncio.Future[dict[str, Any]], holder: Holder) -> tuple[int, str]:
    """Return the exit code and, where the command was never started, the reason.

    Raises:
        SandboxError: `sandbox.lost`, or `sandbox.exec_failed` when the end is not known.
    """
    answers = {} if ending.cancelled() else ending.result()
    if answers.get("errno") in _HOST_IS_FULL:
        raise SandboxError(
            "sandbox.exec_failed",
            f"This host had no room for another process: {answers['error']}.",
            hint="Run fewer trials at once on it, or raise its limits of processes and memory.",
        )
    if "error" in answers:
        return int(answers["exit"]), f"{answers['error']}\n"
    if "status" in answers:
        status = int(answers["status"])
        return (status if status >= 0 else 128 - status), ""
    if not holder.is_alive():
        raise lost()
    raise SandboxError(
        "sandbox.exec_failed",
        "The end of a command in a local sandbox could not be learnt within its deadline.",
        hint="A process of it may be stuck in the kernel; look at the load of the worker's host.",
    )


async def kill(holder: Holder, what: Mapping[str, Any]) -> None:
    """Kill the processes of a tag or a user, and return when none is left.

    Raises:
        SandboxError: `sandbox.exec_failed` when one cannot be killed, `sandbox.lost`.
    """
    channel = holder.ask(b"k", {**what, "deadline_s": _KILL_S})
    try:
        async with asyncio.timeout(_KILL_S + _ANSWER_S):
            answer = await channel.receive()
    except TimeoutError:
        answer = {"left": ["all"]}
    finally:
        channel.close()
    if answer is None:
        raise lost()
    if answer["left"]:
        raise SandboxError(
            "sandbox.exec_failed",
            f"Processes of a local sandbox could not be killed: {', '.join(map(str, answer['left'][:10]))}.",
            hint="They wait in the kernel, e.g. for a dead network disk; see `ps -o stat,wchan` on the host.",
        )


async def _abandon(holder: Holder, tag: str) -> None:
    """Kill what a cancelled command started; cancellation itself goes on meanwhile."""
    with contextlib.suppress(SandboxError):
        await asyncio.shield(asyncio.ensure_future(kill(holder, {"tag": tag})))
