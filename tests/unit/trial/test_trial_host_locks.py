"""Setup commands that name a lock take turns on a host, whoever runs them and however that ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.trial.host_locks import HostLocks

HOLDER = """
import asyncio, sys
from pathlib import Path
from benchflow_workers.trial.host_locks import HostLocks

async def main():
    async with HostLocks(Path(sys.argv[1])).hold("db"):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_holders_of_one_name_take_turns(tmp_path: Path) -> None:
    inside, most = 0, 0

    async def turn() -> None:
        nonlocal inside, most
        async with HostLocks(tmp_path / "locks").hold("db"):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(turn() for _ in range(4)))

    assert (inside, most) == (0, 1)


async def test_other_names_do_not_wait(tmp_path: Path) -> None:
    locks = HostLocks(tmp_path)

    async with asyncio.timeout(60), locks.hold("a/b"), locks.hold("a b"), locks.hold(""):
        pass


async def test_lock_that_stays_taken_is_named_after_its_time(tmp_path: Path) -> None:
    async with HostLocks(tmp_path).hold("db"):
        with pytest.raises(SandboxError) as caught:
            async with HostLocks(tmp_path, wait_s=0.05).hold("db"):
                pass

    assert caught.value.code == "sandbox.start_failed"
    assert "'db'" in caught.value.message


async def test_trial_that_is_stopped_while_it_waits_takes_nothing(tmp_path: Path) -> None:
    async def wait() -> None:
        async with HostLocks(tmp_path).hold("db"):
            pass

    async with HostLocks(tmp_path).hold("db"):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async with asyncio.timeout(60), HostLocks(tmp_path).hold("db"):
        pass


async def test_worker_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert await asyncio.wait_for(holder.stdout.readline(), 60) == b"held\n"
        with pytest.raises(SandboxError):
            async with HostLocks(tmp_path, wait_s=0.05).hold("db"):
                pass
    finally:
        holder.send_signal(signal.SIGKILL)

    async with asyncio.timeout(60), HostLocks(tmp_path).hold("db"):
        pass
    await holder.wait()


async def test_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SandboxError) as caught:
        async with HostLocks(tmp_path / "file").hold("db"):
            pass

    assert caught.value.code == "sandbox.start_failed"
