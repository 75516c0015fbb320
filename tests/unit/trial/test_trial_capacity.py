"""A worker's sandboxes together never take more than it was given."""

from __future__ import annotations

import asyncio
import threading

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.trial.capacity import Capacity


def run_at_once(capacity: Capacity, needs: list[tuple[float | None, int | None]]) -> tuple[float, int]:
    """Hold all needs from threads of their own; return the most cores and trials at once."""
    lock, now, most = threading.Lock(), [0.0, 0], [0.0, 0]

    async def hold(cpus: float | None, memory_mb: int | None) -> None:
        async with capacity.hold(cpus, memory_mb):
            with lock:
                now[0] += cpus or 0.0
                now[1] += 1
                most[:] = [max(most[0], now[0]), max(most[1], now[1])]
            await asyncio.sleep(0.03)
            with lock:
                now[0] -= cpus or 0.0
                now[1] -= 1

    threads = [threading.Thread(target=lambda need=need: asyncio.run(hold(*need))) for need in needs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return most[0], int(most[1])


def test_without_a_limit_nothing_waits() -> None:
    assert run_at_once(Capacity(), [(4.0, 9000)] * 3)[1] >= 1


def test_cores_are_never_given_twice() -> None:
    capacity = Capacity()
    capacity.limit(cpus=2.0, memory_mb=None)

    assert run_at_once(capacity, [(1.0, 100)] * 6)[0] <= 2.0


def test_memory_is_never_given_twice() -> None:
    capacity = Capacity()
    capacity.limit(cpus=None, memory_mb=1000)

    assert run_at_once(capacity, [(1.0, 600)] * 4)[1] == 1


def test_sandbox_without_a_limit_of_its_own_takes_all() -> None:
    capacity = Capacity()
    capacity.limit(cpus=4.0, memory_mb=None)

    assert run_at_once(capacity, [(None, None), (1.0, 1)])[1] == 1


def test_sandbox_larger_than_the_worker_is_refused_by_name() -> None:
    capacity = Capacity()
    capacity.limit(cpus=None, memory_mb=1000)

    async def hold() -> None:
        async with capacity.hold(1.0, 2048):
            raise AssertionError("it does not fit")

    with pytest.raises(SandboxError, match="2048 MiB of memory; this worker has 1000") as caught:
        asyncio.run(hold())
    assert caught.value.code == "sandbox.too_large"


def test_trial_that_stops_while_waiting_takes_nothing() -> None:
    capacity = Capacity()
    capacity.limit(cpus=1.0, memory_mb=None)

    async def scene() -> None:
        async with capacity.hold(1.0, 1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), capacity.hold(1.0, 1):
                    raise AssertionError("there is no room")
        async with asyncio.timeout(5), capacity.hold(1.0, 1):
            pass

    asyncio.run(scene())
