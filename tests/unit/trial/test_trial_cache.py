"""Bundles are fetched once per host and parsed once per worker; a bad one is told apart from a missing one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow_client.errors import TaskError, TrialError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.plan import PlannedAgent, PlannedTask
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import pack
from benchflow_workers.trial.cache import BundleCache
from tests.worlds import World, write_task


class CountingStore(FileStore):
    """A folder that counts what is fetched from it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched = 0
        self._count_lock = threading.Lock()

    def get_file(self, key: str, target: Path) -> None:
        with self._count_lock:
            self.fetched += 1
        super().get_file(key, target)


def planned(world: World) -> PlannedTask:
    return world.plan.tasks[0]


def stored(store: FileStore, folder: Path, scratch: Path) -> str:
    """Put a folder into the store and return its digest."""
    bundle = pack(folder, scratch / "one.tar")
    store.put_file(bundle_key(bundle.digest), scratch / "one.tar")
    return bundle.digest


def test_many_threads_fetch_a_bundle_once(world: World, tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    cache, start = BundleCache(store, tmp_path / "cache"), threading.Barrier(8)
    names: list[str] = []

    def take() -> None:
        start.wait(timeout=10)
        names.append(cache.task(planned(world)).task.name)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert names == ["fix-build"] * 8
    assert store.fetched == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [planned(world).digest]


def test_another_worker_of_the_host_finds_the_bundle_unpacked(world: World, tmp_path: Path) -> None:
    store = CountingStore(tmp_path / "store")
    BundleCache(store, tmp_path / "cache").task(planned(world))

    found = BundleCache(store, tmp_path / "cache").task(planned(world))

    assert store.fetched == 1
    assert found.path == tmp_path / "cache" / planned(world).digest


def test_task_is_called_by_its_own_name_and_not_by_its_digest(world: World) -> None:
    cache = world.parts.bundles
    other = planned(world).model_copy(update={"name": "the-same-files"})

    assert cache.task(planned(world)).task.name == "fix-build"
    assert cache.task(other).task.name == "the-same-files"
    assert cache.task(planned(world)).task.name == "fix-build"


def test_environment_has_a_digest_of_its_own(make: Callable[..., World], tmp_path: Path) -> None:
    """Tasks that differ in their prompt only share an image."""
    world = make()
    changed = write_task(tmp_path / "other" / "fix-build", files={"instruction.md": "Another prompt.\n"})
    digest = stored(world.store, changed, tmp_path)

    first = world.parts.bundles.task(planned(world))
    second = world.parts.bundles.task(PlannedTask(name="other", slug="other", digest=digest))

    assert digest != planned(world).digest
    assert first.environment_digest == second.environment_digest


def test_task_without_a_build_folder_is_known_by_its_whole_digest(world: World, tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "other" / "ready", toml='[environment]\ndocker_image = "debian:bookworm-slim"\n'
    )
    (folder / "environment" / "Dockerfile").unlink()
    (folder / "environment").rmdir()
    digest = stored(world.store, folder, tmp_path)

    found = world.parts.bundles.task(PlannedTask(name="ready", slug="ready", digest=digest))

    assert found.environment_digest == digest


def test_missing_bundle_says_what_to_do(world: World) -> None:
    missing = PlannedTask(name="gone", slug="gone", digest="a" * 64)

    with pytest.raises(TrialError) as caught:
        world.parts.bundles.task(missing)

    assert caught.value.code == "store.bundle_missing"
    assert "aaaaaaaaaaaa" in caught.value.message
    assert "Submit the job again" in caught.value.hint


def test_bundle_that_came_later_is_found_then(world: World, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "other" / "late", files={"instruction.md": "Later.\n"})
    bundle = pack(folder, tmp_path / "late.tar")
    task = PlannedTask(name="late", slug="late", digest=bundle.digest)
    with pytest.raises(TrialError):
        world.parts.bundles.task(task)

    world.store.put_file(bundle_key(bundle.digest), tmp_path / "late.tar")

    assert world.parts.bundles.task(task).task.name == "late"


def test_task_that_cannot_be_read_is_the_authors_matter(world: World, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "other" / "broken", toml='[agent]\ntimeout_sec = "ten"\n')
    digest = stored(world.store, folder, tmp_path)

    with pytest.raises(TrialError) as caught:
        world.parts.bundles.task(PlannedTask(name="broken", slug="broken", digest=digest))

    assert caught.value.code == "task.unreadable"
    assert "timeout_sec" in caught.value.message


def test_bundle_that_is_not_what_the_plan_names_is_refused(world: World) -> None:
    other = PlannedTask(name="other", slug="other", digest="b" * 64)
    world.store.put(bundle_key(other.digest), world.store.get(bundle_key(planned(world).digest)))

    with pytest.raises(TaskError, match="digest"):
        world.parts.bundles.task(other)

    assert [path.name for path in (world.folder / "bundles").iterdir()] == []


def test_script_of_an_agent_is_found_in_its_bundle(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "mine.py").write_text("print(1)\n")
    digest = stored(world.store, folder, tmp_path)
    spec = AgentSpec(name="agents/mine.py")
    agent = PlannedAgent(label="mine", slug="mine", spec=spec, bundle=digest, script="mine.py")

    script = world.parts.bundles.script(agent)

    assert script is not None
    assert script.read_text() == "print(1)\n"


def test_registered_agent_has_no_script(world: World) -> None:
    assert world.parts.bundles.script(world.plan.agents[0]) is None
