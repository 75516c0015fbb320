"""Tasks and agent scripts on this host: fetched once per digest, parsed once per process."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from benchflow_client.errors import ObjectNotFoundError, TaskError, TrialError
from benchflow_client.schema.plan import PlannedAgent, PlannedTask
from benchflow_client.schema.task import Task
from benchflow_client.store.base import Store
from benchflow_client.store.layout import bundle_key
from benchflow_client.tasks.bundle import unpack
from benchflow_client.tasks.digest import folder_digest
from benchflow_client.tasks.read import read_task
from benchflow_workers.trial.records import TaskFolder

_PARSED_LIMIT = 4096
"""Parsed tasks kept in memory; a task is some kilobytes."""


class BundleCache:
    """Unpacked bundles below a folder of this host, shared by all its workers.

    Args:
        store: Where bundles come from.
        folder: Folder for unpacked bundles.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self._folder = folder
        self._locks: dict[str, threading.Lock] = {}
        self._parsed: OrderedDict[str, TaskFolder] = OrderedDict()
        self._lock = threading.Lock()

    def task(self, planned: PlannedTask) -> TaskFolder:
        """Return the unpacked and parsed folder of a planned task.

        Raises:
            TrialError: `store.bundle_missing`, `task.unreadable`.
            StoreError: The store cannot be read.
        """
        with self._lock:
            if planned.digest in self._parsed:
                self._parsed.move_to_end(planned.digest)
                return _named(self._parsed[planned.digest], planned.name)
        path = self.folder_of(planned.digest)
        try:
            task = read_task(path)
        except TaskError as error:
            text = "\n".join((error.message, *error.problems))
            raise TrialError("task.unreadable", text, hint=error.hint) from error
        environment = path / "environment"
        found = TaskFolder(task, path, folder_digest(environment) if environment.is_dir() else planned.digest)
        with self._lock:
            self._parsed[planned.digest] = found
            while len(self._parsed) > _PARSED_LIMIT:
                self._parsed.popitem(last=False)
        return _named(found, planned.name)

    def script(self, agent: PlannedAgent) -> Path | None:
        """Return the file of a script agent on this host; None = a registered agent."""
        if agent.bundle is None or agent.script is None:
            return None
        return self.folder_of(agent.bundle) / agent.script

    def folder_of(self, digest: str) -> Path:
        """Return the unpacked folder of a bundle, fetching it where it is not here yet."""
        target = self._folder / digest
        with self._lock:
            lock = self._locks.setdefault(digest, threading.Lock())
        with lock:
            if not target.is_dir():
                self._fetch(digest, target)
        return target

    def _fetch(self, digest: str, target: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        archive = self._folder / f"{digest}.{os.getpid()}-{threading.get_ident()}.tar"
        try:
            self.store.get_file(bundle_key(digest), archive)
            unpack(archive, target, digest=digest)
        except ObjectNotFoundError as error:
            raise TrialError(
                "store.bundle_missing",
                f"The bundle {digest[:12]} is not in the store {self.store.url}.",
                hint="Submit the job again; it uploads what is missing.",
            ) from error
        finally:
            archive.unlink(missing_ok=True)


def _named(found: TaskFolder, name: str) -> TaskFolder:
    """Return the folder under the task's own name; on this host it is called by its digest."""
    task: Task = found.task
    if task.name == name:
        return found
    return TaskFolder(task.model_copy(update={"name": name}), found.path, found.environment_digest)
