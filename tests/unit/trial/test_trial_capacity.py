"""A worker never runs more than fits, and what a stopped trial waited for is free for others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.trial.capacity import Capacity
from tests.worlds import World


def limited(*, cpus: float | None = None, memory_mb: int | None = None) -> Capacity:
    capacity = Capacity()
    capacity.limit(cpus=cpus, memory_mb=memory_mb)
    return capacity


async def fits(capacity: Capacity, cpus: float | None, memory_mb: int | None, *, within_s: float) -> bool:
    """Return whether there is room within some seconds."""
    try:
        async with asyncio.timeout(within_s), capacity.hold(cpus, memory_mb):
            return True
    except TimeoutError:
        return False


async def test_nothing_waits_without_a_limit() -> None:
    capacity = Capacity()

    async with capacity.hold(1000.0, 1 << 20), capacity.hold(None, None):
        assert await fits(capacity, 1000.0, None, within_s=5)


@pytest.mark.parametrize(("cpus", "memory_mb"), [(3.0, None), (None, 300)])
async def test_sandbox_that_no_idle_worker_could_hold_is_refused_at_once(
    cpus: float | None, memory_mb: int | None
) -> None:
    capacity = limited(cpus=2.0, memory_mb=200)

    with pytest.raises(SandboxError) as caught:
        async with capacity.hold(cpus, memory_mb):
            pass

    assert caught.value.code == "sandbox.too_large"


async def test_room_is_waited_for_and_given_back() -> None:
    capacity = limited(cpus=2.0, memory_mb=1000)

    async with capacity.hold(1.5, 100):
        assert not await fits(capacity, 1.0, 100, within_s=0.1)
        assert await fits(capacity, 0.5, 900, within_s=5)

    assert await fits(capacity, 2.0, 1000, within_s=5)


async def test_memory_alone_can_be_what_is_missing() -> None:
    capacity = limited(memory_mb=1000)

    async with capacity.hold(64.0, 600):
        assert not await fits(capacity, 1.0, 600, within_s=0.1)


async def test_sandbox_without_a_limit_of_its_own_takes_the_whole_worker() -> None:
    capacity = limited(cpus=4.0)

    async with capacity.hold(None, None):
        assert not await fits(capacity, 0.1, None, within_s=0.1)


async def test_trial_stopped_while_it_waits_takes_nothing_with_it() -> None:
    """Room that comes free at the moment of the stop must not be taken for nobody."""
    capacity = limited(cpus=1.0)

    async with capacity.hold(1.0, None):
        waiting = [asyncio.create_task(fits(capacity, 1.0, None, within_s=30)) for _ in range(4)]
        assert not await fits(capacity, 1.0, None, within_s=0.2)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()  # every thread that waited has ended

    async with asyncio.timeout(5), capacity.hold(1.0, None):
        pass


def test_trials_of_other_threads_count() -> None:
    capacity = limited(cpus=1.0)
    running, most, lock = 0, 0, threading.Lock()

    async def trial() -> None:
        nonlocal running, most
        async with capacity.hold(0.5, None):
            with lock:
                running += 1
                most = max(most, running)
            await asyncio.sleep(0.02)
            with lock:
                running -= 1

    threads = [threading.Thread(target=lambda: asyncio.run(trial())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert most == 2
    assert running == 0


async def test_trial_too_large_for_its_worker_is_a_failed_trial(make: Callable[..., World]) -> None:
    from benchflow_workers.trial.runner import run_attempt

    world = make(toml="[environment]\ncpus = 8\n")
    world.parts.capacity.limit(cpus=2.0, memory_mb=None)

    rollout, _ = await run_attempt(world.attempt(), world.parts, world.scratch, lambda phase: None)

    assert [failure.code for failure in rollout.failures] == ["sandbox.too_large"]
    assert world.sandboxes.opened == []
