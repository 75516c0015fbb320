import asyncio
import threading

import pytest

from benchflow_workers.sandbox.docker_gate import StartGate

DEADLINE_S = 20


async def settle() -> None:
    """Let every callback that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def hold(gate: StartGate, release: asyncio.Event, entered: list[int], number: int) -> None:
    async with gate:
        entered.append(number)
        await release.wait()


async def test_only_as_many_as_slots_enter() -> None:
    gate, release, entered = StartGate(2), asyncio.Event(), list[int]()
    tasks = [asyncio.create_task(hold(gate, release, entered, number)) for number in range(5)]

    await settle()
    assert entered == [0, 1]
    release.set()
    await asyncio.gather(*tasks)

    assert entered == [0, 1, 2, 3, 4]


async def test_cancelled_waiter_gives_its_place_to_the_next() -> None:
    gate, release, entered = StartGate(1), asyncio.Event(), list[int]()
    first = asyncio.create_task(hold(gate, release, entered, 0))
    second = asyncio.create_task(hold(gate, release, entered, 1))
    third = asyncio.create_task(hold(gate, release, entered, 2))
    await settle()

    second.cancel()
    await settle()
    release.set()
    await asyncio.gather(first, third)

    assert entered == [0, 2]
    with pytest.raises(asyncio.CancelledError):
        await second


async def test_slot_granted_to_a_cancelled_waiter_is_not_lost() -> None:
    """The grant is under way when the waiter is cancelled, in either order."""
    for cancel_first in (True, False):
        gate, release, entered = StartGate(1), asyncio.Event(), list[int]()
        holder = asyncio.create_task(hold(gate, release, entered, 0))
        waiter = asyncio.create_task(hold(gate, release, entered, 1))
        await settle()
        release.set()
        await asyncio.sleep(0)
        if not cancel_first:
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(holder, waiter, return_exceptions=True)

        async with asyncio.timeout(DEADLINE_S), gate:
            pass


async def test_body_that_fails_gives_its_slot_back() -> None:
    gate = StartGate(1)

    with pytest.raises(ValueError, match="inside"):
        async with gate:
            raise ValueError("inside")

    async with asyncio.timeout(DEADLINE_S), gate:
        pass


def test_event_loops_of_several_threads_share_the_slots() -> None:
    gate = StartGate(2)
    inside, most = 0, 0
    lock = threading.Lock()

    async def trial() -> None:
        nonlocal inside, most
        for _ in range(20):
            async with gate:
                with lock:
                    inside += 1
                    most = max(most, inside)
                await asyncio.sleep(0.001)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=asyncio.run, args=(trial(),)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert (most, inside) == (2, 0)
    assert not any(thread.is_alive() for thread in threads)


def test_waiter_whose_loop_is_gone_is_passed_over() -> None:
    gate = StartGate(1)
    gone = asyncio.new_event_loop()
    stuck = gone.create_task(gate.__aenter__())
    gone.run_until_complete(stuck)
    waiting = gone.create_task(gate.__aenter__())
    gone.run_until_complete(asyncio.sleep(0))
    waiting_coroutine = waiting.get_coro()
    gone.close()

    async def release_and_enter() -> None:
        await gate.__aexit__(None, None, None)
        async with asyncio.timeout(DEADLINE_S), gate:
            pass

    asyncio.run(release_and_enter())
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    del waiting, waiting_coroutine
