"""The loop of a trial ends, whatever was left running in it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from benchflow_workers.trial.event_loop import run_to_end


async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


def test_result_and_error_of_a_trial_come_through() -> None:
    async def value() -> int:
        return await asyncio.to_thread(lambda: 7)

    async def error() -> int:
        await asyncio.sleep(0)
        raise KeyError("x")

    assert run_to_end(value()) == 7
    with pytest.raises(KeyError):
        run_to_end(error())


def test_tasks_that_were_left_are_cancelled_and_may_clean_up() -> None:
    cleaned: list[str] = []

    async def left() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append("left")

    async def main() -> list[asyncio.Task[None]]:
        task = asyncio.create_task(left())
        await asyncio.sleep(0)
        return [task]

    (task,) = run_to_end(main())

    assert task.cancelled()
    assert cleaned == ["left"]


def test_task_that_swallows_its_cancellation_does_not_hold_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[asyncio.Task[None]]:
        task = asyncio.create_task(stubborn())
        await asyncio.sleep(0)
        return [task]

    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        (task,) = run_to_end(main(), tasks_grace_s=0.05)

    assert time.monotonic() - started < 20
    assert "ignores its cancellation" in caplog.text
    task.get_coro().close()  # type: ignore[union-attr]


def test_blocking_call_that_never_returns_does_not_hold_the_slot(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, release.wait, 60)
        await asyncio.sleep(0)

    started = time.monotonic()
    with caplog.at_level(logging.WARNING):
        run_to_end(main(), threads_grace_s=0.05)

    assert time.monotonic() - started < 20
    assert "does not return" in caplog.text
    release.set()


def test_trial_that_is_stopped_from_outside_says_so() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)

    with pytest.raises(asyncio.CancelledError):
        run_to_end(main())
