"""Brings a job from its store into a folder of this machine, safely and again and again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchflow_client.errors import ObjectNotFoundError, UsageError
from benchflow_client.results.read import job_not_found
from benchflow_client.store.base import Store
from benchflow_client.store.keys import TEMP_PREFIX, is_safe, relative_to
from benchflow_client.store.layout import attempt_prefix, job_prefix, plan_key
from benchflow_client.store.local import disk_errors, place_below

Progress = Callable[[int, int], None]
"""Called with (documents in the folder, documents of the job), from one thread."""

_FOLDERS_AT_ONCE = 4
"""Attempts copied at once; a remote store copies several files of each at once."""


def fetch_job(store: Store, job: str, folder: Path, on_progress: Progress | None = None) -> int:
    """Copy every document of a job into a folder and return how many are there now.

    Safe to call twice: what is there already is not copied again, so an interrupted copy
    continues, and a running job is brought up to date. Nothing lands outside the folder.

    Args:
        store: Where the job is.
        job: Its name.
        folder: Where to; new, empty, or from an earlier call for the same job.
        on_progress: Told after each attempt; None = nobody.

    Raises:
        JobNotFoundError: The store has no such job.
        UsageError: The folder holds something else.
        StoreError: The store cannot be read or the folder cannot be written.
    """
    contents = _Contents(store, job)
    if _is_in_place(store, job, folder):
        _tell(on_progress, contents.total, contents.total)
        return contents.total
    _claim(store, job, folder)
    done = sum(_copy(store, job, folder, name) for name in contents.documents)
    _tell(on_progress, done, contents.total)
    with ThreadPoolExecutor(_FOLDERS_AT_ONCE, thread_name_prefix="fetch") as pool:
        for copied in pool.map(lambda name: _copy_attempt(store, job, folder, name), contents.folders):
            done += copied
            _tell(on_progress, done, contents.total)
    return done


class _Contents:
    """What a job holds: documents of its own, and folders with how many documents each."""

    def __init__(self, store: Store, job: str) -> None:
        if not store.exists(plan_key(job)):
            raise job_not_found(store, job)
        bare = job_prefix(job).removesuffix("/")
        self.documents: list[str] = []
        self.folders: Counter[str] = Counter()
        for key in store.list(job_prefix(job)):
            name, slash, _ = relative_to(bare, key).partition("/")
            if slash:
                self.folders[name] += 1
            else:
                self.documents.append(name)
        self.total = len(self.documents) + self.folders.total()


def _is_in_place(store: Store, job: str, folder: Path) -> bool:
    """Return whether the folder is the store's own, where copying could undo a write."""
    return Path(os.path.realpath(folder)).as_uri() == f"{store.url}/{job}"


def _claim(store: Store, job: str, folder: Path) -> None:
    """Refuse a folder of something else; write the plan first, which marks it as this job's."""
    plan = folder / "plan.json"
    with disk_errors(f"write to {str(folder)!r}", folder):
        folder.mkdir(parents=True, exist_ok=True)
        is_used = any(not entry.name.startswith(TEMP_PREFIX) for entry in folder.iterdir())
        if is_used and not (plan.is_file() and plan.read_bytes() == store.get(plan_key(job))):
            raise UsageError(
                f"The folder {folder} is not empty and does not hold the job {job!r} of {store.url}.",
                hint="Choose another folder, or empty this one.",
            )
    if not is_used:
        store.get_file(plan_key(job), plan)


def _copy(store: Store, job: str, folder: Path, name: str) -> int:
    target = place_below(folder, name)
    if target is None:
        return 0
    try:
        store.get_file(f"{job_prefix(job)}{name}", target)
    except ObjectNotFoundError:
        return 0  # removed since it was listed
    return 1


def _copy_attempt(store: Store, job: str, folder: Path, name: str) -> int:
    target = place_below(folder, name)
    if target is None or not is_safe(name) or target.is_symlink():
        return 0
    return store.get_tree(attempt_prefix(job, name), target)


def _tell(on_progress: Progress | None, done: int, total: int) -> None:
    if on_progress is not None:
        on_progress(done, total)
