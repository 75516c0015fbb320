"""A store in a folder: one machine, or many that share a file system.

Safe for several processes at once. Every write goes to a hidden file in the same folder and
is then renamed or linked, so a reader sees a whole document or none. Nothing is forced to the
disk, for a trial writes some 15 files and an `fsync` of each waits for the disk: killed
processes lose nothing, but a power cut may lose or empty what was written in the last seconds,
and readers report such a document as unreadable.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from benchflow_client.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from benchflow_client.store.keys import check_key, check_prefix, is_safe, join, relative_to
from benchflow_client.store.local import (
    copy_whole,
    disk_error,
    disk_errors,
    facts_of,
    is_current,
    is_within,
    open_source,
    place_below,
    regular_files,
    temp_beside,
)

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FileStore:
    """A `Store` whose keys are paths below one folder.

    Symlinks inside the folder are never followed out of it. Permission to execute is kept.

    Args:
        root: The folder; it is made with the first write.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root.expanduser()))

    @property
    def root(self) -> Path:
        """Return the folder, absolute and without symlinks."""
        return self._root

    @property
    def url(self) -> str:
        """Return the folder as a ``file://`` address."""
        return self._root.as_uri()

    def put(self, key: str, data: bytes) -> None:
        """Write a whole document, replacing what is there."""
        target = self._writable(key)
        with disk_errors(f"write {key!r}", target.parent):
            copy_whole(io.BytesIO(data), target)

    def create(self, key: str, data: bytes) -> None:
        """Write a document that must not exist yet; of several writers one wins.

        Raises:
            ObjectExistsError: Somebody wrote it before; theirs stands.
            StoreError: The file system has no hard links, so nothing can be write-once.
        """
        target = self._writable(key)
        with disk_errors(f"write {key!r}", target.parent), temp_beside(target) as (temp, stream):
            stream.write(data)
            stream.close()
            self._link(temp, target, key)

    def get(self, key: str) -> bytes:
        """Return a whole document.

        Raises:
            ObjectNotFoundError: There is none.
        """
        path = self._readable(key)
        with disk_errors(f"read {key!r}", path):
            return path.read_bytes()

    def exists(self, key: str) -> bool:
        """Return whether a document is there."""
        return self._find(key) is not None

    def list(self, prefix: str) -> Iterator[str]:
        """Yield every key below a folder-like prefix; files still being written are left out."""
        bare = check_prefix(prefix)
        folder = self._contained(self._root / bare, bare)
        with disk_errors(f"list {prefix!r}", folder):
            yield from _keys_below(folder, bare)

    def put_file(self, key: str, source: Path) -> None:
        """Write a regular file of any size as a document; a symlink is refused."""
        target = self._writable(key)
        with open_source(source) as (stream, facts), disk_errors(f"write {key!r}", target.parent):
            copy_whole(stream, target, facts)

    def get_file(self, key: str, target: Path) -> None:
        """Copy a document of any size to a local file; `target` appears whole.

        Raises:
            ObjectNotFoundError: There is none.
        """
        path = self._readable(key)
        with open_source(path) as (stream, facts), disk_errors(f"copy {key!r}", target.parent):
            copy_whole(stream, target, facts)

    def put_tree(self, prefix: str, folder: Path) -> None:
        """Write every regular file below a folder under `prefix`; symlinks are left out."""
        bare = check_prefix(prefix)
        for source in regular_files(folder, prefix=bare):
            self.put_file(join(bare, source.relative), source.path)

    def get_tree(self, prefix: str, folder: Path) -> int:
        """Copy every document below `prefix` into a folder.

        Returns:
            Number of documents now in the folder, those already there included.
        """
        bare = check_prefix(prefix)
        return sum(self._bring(key, folder, relative_to(bare, key)) for key in self.list(prefix))

    def delete_tree(self, prefix: str) -> None:
        """Remove every document below a prefix; none there is fine."""
        bare = check_prefix(prefix)
        folder = self._contained(self._root / check_key(bare), bare)
        with disk_errors(f"remove {prefix!r}", folder):
            _remove(folder)

    def _bring(self, key: str, folder: Path, relative: str) -> bool:
        target = place_below(folder, relative)
        found = self._find(key)
        if target is None or found is None:
            return False
        if not is_current(target, facts_of(found)):
            self.get_file(key, target)
        return True

    def _find(self, key: str) -> os.stat_result | None:
        path = self._contained(self._root / check_key(key), key)
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise disk_error(error, f"read {key!r}", path) from error
        return found if stat.S_ISREG(found.st_mode) else None

    def _readable(self, key: str) -> Path:
        if self._find(key) is None:
            raise ObjectNotFoundError(
                f"There is no {key!r} in the store {self.url}.",
                hint="Check the name of the job and the store: `bench jobs` lists what is there.",
            )
        return self._contained(self._root / key, key)

    def _writable(self, key: str) -> Path:
        path = self._root / check_key(key)
        return self._contained(path.parent, key) / path.name

    def _contained(self, path: Path, key: str) -> Path:
        """Return a path with its symlinks resolved, which must not lead out of the store."""
        real = os.path.realpath(path)
        if not is_within(real, str(self._root)):
            raise StoreError(
                f"{key!r} leads out of the store {self.url} through a symlink to {real}.",
                hint="Remove the symlink from the store's folder.",
            )
        return Path(real)

    def _link(self, temp: Path, target: Path, key: str) -> None:
        try:
            os.link(temp, target)
        except FileExistsError as error:
            # NFS repeats a call whose answer was lost; two names mean that ours went through.
            if temp.stat().st_nlink == 2:
                return
            raise ObjectExistsError(
                f"{key!r} is already written in the store {self.url}.",
                hint="Choose another name, or keep what is there.",
            ) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StoreError(
                f"Cannot write {key!r} once: the file system of {target.parent} has no hard links.",
                hint="Keep the store on a local disk or NFS, or use an s3:// store.",
            ) from error


def _keys_below(folder: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing there, or removed while listing
    for entry in entries:
        if not is_safe(entry.name):
            continue
        key = join(prefix, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _keys_below(Path(entry.path), key)
        elif entry.is_file(follow_symlinks=False):
            yield key


def _remove(folder: Path) -> None:
    while folder.is_dir():
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue  # somebody else removes it too
