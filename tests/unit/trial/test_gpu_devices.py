"""A GPU is one trial's at a time, and a trial gets exactly as many as its task asks for."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.trial.capacity import Capacity

DEVICES = ("0", "1", "GPU-7a", "3")


def test_no_gpu_is_given_to_two_trials_at_once_however_many_ask() -> None:
    """40 trials on threads with event loops of their own, as in a worker, some of which are cancelled as they wait."""
    seed = random.randrange(1 << 32)
    choose, lock = random.Random(seed), threading.Lock()
    held, mistakes, given = Counter[str](), list[str](), Counter[str]()
    capacity = Capacity(gpus=DEVICES)

    async def trial(number: int, *, is_patient: bool) -> None:
        async with (
            asyncio.timeout(None if is_patient else 0.01),
            capacity.hold(1.0, 100, gpus=number) as gpus,
        ):
            with lock:
                held.update(gpus)
                given.update(gpus)
                mistakes.extend(gpu for gpu in gpus if held[gpu] != 1)
                mistakes.extend([f"{number} asked, {gpus} given"] * (len(set(gpus)) != number))
            try:
                await asyncio.sleep(0.003)
            finally:
                with lock:
                    held.subtract(gpus)

    def run(number: int, *, is_patient: bool) -> None:
        try:
            asyncio.run(trial(number, is_patient=is_patient))
        except TimeoutError:
            mistakes.extend(["a patient trial gave up"] * is_patient)

    threads = [
        threading.Thread(
            target=run, args=(choose.randint(0, 4),), kwargs={"is_patient": choose.random() < 0.7}
        )
        for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert mistakes == [], f"seed {seed}"
    assert set(given) == set(DEVICES), f"seed {seed}"

    async def all_are_back() -> None:
        async with asyncio.timeout(60), capacity.hold(None, None, gpus=4) as gpus:
            assert gpus == DEVICES

    asyncio.run(all_are_back())


def test_trial_that_asks_for_more_than_there_are_is_too_large() -> None:
    async def ask(capacity: Capacity) -> None:
        async with capacity.hold(1.0, 1, gpus=3):
            raise AssertionError("there are not so many")

    with pytest.raises(SandboxError, match="needs 3 GPUs; this worker has 2") as caught:
        asyncio.run(ask(Capacity(gpus=("0", "1"))))

    assert caught.value.code == "sandbox.too_large"
    assert "BENCHFLOW_GPUS" in caught.value.hint


def test_trial_that_waits_for_a_gpu_keeps_no_cores_from_others() -> None:
    async def scene() -> None:
        capacity = Capacity(gpus=("0",))
        capacity.limit(cpus=2.0, memory_mb=None)
        async with capacity.hold(1.0, 1, gpus=1) as first:
            waiting = asyncio.create_task(_held(capacity))
            async with asyncio.timeout(60), capacity.hold(1.0, 1) as none:
                assert (first, none) == (("0",), ())
                assert not waiting.done()
        assert await asyncio.wait_for(waiting, 60) == ("0",)

    async def _held(capacity: Capacity) -> tuple[str, ...]:
        async with capacity.hold(1.0, 1, gpus=1) as gpus:
            return gpus

    asyncio.run(scene())
