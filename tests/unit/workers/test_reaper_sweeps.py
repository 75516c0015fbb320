"""Leftover sandboxes go, living ones stay, and each is on record before it is made."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from benchflow_client.errors import BrokerError, SandboxError
from benchflow_client.ledger.base import JobHeader
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.sandboxes import MemorySandboxBook, SandboxRecord
from benchflow_workers.reaper import Reaper
from benchflow_workers.sandbox.base import Command, SandboxSpec, Upload
from benchflow_workers.sandbox.recorded import RecordedSandboxes
from benchflow_workers.testing import ScriptedSandboxes
from tests.waiting import until


class Scene:
    """One provider, a ledger with two trials of which trial 0 is leased, a book and a reaper."""

    def __init__(self) -> None:
        self.inner = ScriptedSandboxes()
        self.book = MemorySandboxBook()
        self.provider = RecordedSandboxes(self.inner, self.book)
        self.ledger = MemoryLedger()
        self.ledger.open_job(JobHeader("j", 2, 2, 3, "ana", "local", "g", "b", "t", 0.0))
        self.ledger.claim("j", 0, owner="w", ttl_s=60, max_attempts=3)
        self.reaper = Reaper([self.provider], self.ledger, self.book, fleet="ours", interval_s=0.01)

    def open(self, name: str, *, index: object = 0, fence: int = 1, fleet: str = "ours"):
        labels = {"bf.fleet": fleet, "bf.job": "j", "bf.trial": f"j.{index}", "bf.index": str(index)}
        spec = SandboxSpec(name, {**labels, "bf.fence": str(fence)}, "image", None, "")
        return asyncio.run(self.provider.open(spec))

    def names(self) -> set[str]:
        return {ref.id for ref in asyncio.run(self.inner.list({}))}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_sandbox_without_a_live_lease_is_removed_and_others_stay(scene: Scene) -> None:
    scene.open("living")
    scene.open("old-fence", fence=7)
    scene.open("never-claimed", index=1)
    unreadable = SandboxSpec("not-a-trial", {"bf.fleet": "ours", "bf.index": "x"}, "image", None, "")
    asyncio.run(scene.inner.open(unreadable))
    scene.open("foreign", fleet="theirs")

    assert scene.reaper.sweep() == 3

    assert scene.names() == {"living", "foreign"}
    assert {record.name for record in scene.book.read()} == {"living", "foreign"}


def test_audit_changes_nothing(scene: Scene) -> None:
    scene.open("living")
    scene.open("orphan", fence=9)

    audit = scene.reaper.audit()

    assert [ref.id for ref in audit.live] == ["living"]
    assert [ref.id for ref in audit.orphans] == ["orphan"]
    assert scene.names() == {"living", "orphan"}


def test_record_of_a_sandbox_that_never_came_to_be_is_erased_after_its_lease(scene: Scene) -> None:
    place = asyncio.run(scene.inner.place())
    for name, index, where in (("mine", 1, place), ("leased", 0, place), ("elsewhere", 1, "other host")):
        scene.book.write(SandboxRecord(name, scene.inner.kind, where, "", "j", index, 1, "w", created_at=1.0))

    scene.reaper.sweep()

    assert [record.name for record in scene.book.read()] == ["elsewhere", "leased"]


def test_sandbox_is_on_record_before_it_is_made_and_erased_after_it_is_closed(scene: Scene) -> None:
    sandbox = scene.open("one")
    (record,) = scene.book.read()

    assert (record.id, record.job, record.index, record.fence) == ("one", "j", 0, 1)
    asyncio.run(sandbox.close())
    assert scene.book.read() == []
    assert scene.names() == set()


def test_recorded_sandbox_does_what_the_inner_one_does(scene: Scene, tmp_path: Path) -> None:
    sandbox = scene.open("one")

    async def use() -> bool:
        await sandbox.put((Upload("/x", content=b"1"),))
        done = await sandbox.exec(Command(("true",), timeout_s=5))
        await sandbox.kill("agent")
        return done.exit_code == 0 and await sandbox.get("/x", tmp_path / "x")

    assert asyncio.run(use())
    assert (sandbox.workdir, scene.provider.kind) == ("/root", scene.inner.kind)
    assert scene.provider.capabilities == scene.inner.capabilities
    asyncio.run(scene.provider.check())
    asyncio.run(scene.provider.close())


def test_sandbox_that_cannot_be_made_leaves_no_record(scene: Scene) -> None:
    scene.inner.open_error = SandboxError("sandbox.start_failed", "No.")

    with pytest.raises(SandboxError):
        scene.open("one")

    assert scene.book.read() == []


def test_sandbox_nobody_can_write_down_is_never_made() -> None:
    class Unreachable(MemorySandboxBook):
        def write(self, record: SandboxRecord) -> None:
            raise BrokerError(f"no record of {record.name}")

    inner = ScriptedSandboxes()
    with pytest.raises(BrokerError):
        asyncio.run(RecordedSandboxes(inner, Unreachable()).open(SandboxSpec("one", {}, "image", None, "")))

    assert asyncio.run(inner.list({})) == []


def test_sandbox_whose_id_cannot_be_written_down_is_closed_again() -> None:
    class Forgetful(MemorySandboxBook):
        def write(self, record: SandboxRecord) -> None:
            if record.id:
                raise BrokerError("gone in between")
            super().write(record)

    inner = ScriptedSandboxes()
    with pytest.raises(BrokerError):
        asyncio.run(RecordedSandboxes(inner, Forgetful()).open(SandboxSpec("one", {}, "image", None, "")))

    assert asyncio.run(inner.list({})) == []


def test_thread_sweeps_at_once_and_survives_an_unreachable_ledger(scene: Scene) -> None:
    scene.open("orphan", fence=9)
    swept = threading.Event()

    class Flaky(MemoryLedger):
        failures = 1

        def is_live(self, job: str, index: int, *, fence: int) -> bool:
            if self.failures:
                self.failures -= 1
                raise BrokerError("away for a moment")
            swept.set()
            return False

    reaper = Reaper([scene.provider], Flaky(), scene.book, fleet="ours", interval_s=0.01)
    reaper.start()

    assert swept.wait(5)
    reaper.close()


def test_the_end_of_a_job_brings_the_next_sweep_forward(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchflow_workers.reaper.LOOK_S", 0.02)
    reaper = Reaper([scene.provider], scene.ledger, scene.book, fleet="ours", interval_s=600)
    reaper.start()
    until(lambda: "j" in reaper._open_jobs)
    scene.open("orphan", index=1)

    scene.ledger.cancel("j", by="ana", reason="")
    scene.ledger.close_job("j")

    until(lambda: scene.names() == set())
    reaper.close()
