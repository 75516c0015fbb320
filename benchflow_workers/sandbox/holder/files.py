"""Places and collects files inside a sandbox, in a process whose root is the sandbox's.

Whatever links a sandbox plants, they lead nowhere but into the sandbox itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import shutil
import socket
import stat
import tarfile
from collections.abc import Generator, Iterator
from typing import IO

from benchflow_workers.sandbox.holder import wire

_CHUNK_BYTES = 1 << 18

_ITS_OWN_FAULT = frozenset({
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR),
    *(errno.ENXIO, errno.EISDIR, errno.ESTALE, errno.ETXTBSY, errno.ENODEV),
})
"""What is wrong with one entry and with no other: a sandbox must not spoil a whole copy with it."""


def put(channel: socket.socket) -> None:
    """Unpack the tar file passed with the request; its names are relative to `/`.

    Missing parents are made, owned by root, mode 0755. What is in the way of an
    entry is replaced itself, never what it links to; folders merge.
    """
    request, fds = wire.receive(channel)
    os.umask(0)
    with os.fdopen(fds[0], "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for entry in archive:
            _place(archive, entry, keeps_owner=request["has_users"])
    wire.send(channel, {"done": True})


def _place(archive: tarfile.TarFile, entry: tarfile.TarInfo, *, keeps_owner: bool) -> None:
    path = "/" + entry.name.strip("/")
    _make_parents(posixpath.dirname(path))
    is_merged = entry.isdir() and _is_folder(path)
    if not is_merged:
        _clear(path)
    if entry.isdir():
        if not is_merged:
            os.mkdir(path)
    elif entry.issym():
        os.symlink(entry.linkname, path)
    else:
        source = archive.extractfile(entry)
        if source is None:
            return
        with open(path, "xb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
    if keeps_owner:
        os.lchown(path, entry.uid, entry.gid)
    if not entry.issym():
        os.chmod(path, entry.mode & 0o7777)
        os.utime(path, (entry.mtime, entry.mtime))


def _make_parents(folder: str) -> None:
    if os.path.isdir(folder):
        return
    _make_parents(posixpath.dirname(folder))
    if os.path.lexists(folder):
        os.unlink(folder)  # a file or a dangling link where a folder has to be
    os.mkdir(folder, 0o755)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _clear(path: str) -> None:
    if _is_folder(path):
        try:
            shutil.rmtree(path)
        except (OSError, RecursionError):
            _remove_deep(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _remove_deep(path: str) -> None:
    """Delete a tree deeper than Python's stack and the longest path: lift what is below one folder, again and again."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        while names := os.listdir(top):
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                try:
                    for child in os.listdir(folder):
                        os.rename(child, secrets.token_hex(8), src_dir_fd=folder, dst_dir_fd=top)
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def get(channel: socket.socket) -> None:
    """Write a path as a tar stream to the descriptor passed with the request.

    Only folders and regular files are in it; nothing is when the path does not
    exist or is a link. A reader that closes its end stops the copy.
    """
    request, fds = wire.receive(channel)
    path: str = request["path"]
    try:
        with os.fdopen(fds[0], "wb", buffering=_CHUNK_BYTES) as stream:
            _write_archive(path, stream)
    except BrokenPipeError:
        return
    wire.send(channel, {"done": True})


def _write_archive(path: str, stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        for name, status in _walk(path, posixpath.basename(path) or "root"):
            source = path + name.partition("/")[1] + name.partition("/")[2]
            _add(archive, source, name, status)
            archive.members.clear()  # type: ignore[attr-defined]


def _walk(path: str, name: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield names and states of the folders and regular files of a tree, parents first."""
    left = [(path, name)]
    while left:
        path, name = left.pop()
        with _left_out():
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                yield name, status
            elif stat.S_ISDIR(status.st_mode):
                yield name, status
                children = sorted(os.listdir(path), reverse=True)
                left += [(posixpath.join(path, child), f"{name}/{child}") for child in children]


@contextlib.contextmanager
def _left_out() -> Generator[None, None, None]:
    """Go on behind the block where an entry cannot be read for reasons of its own."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ITS_OWN_FAULT:
            raise


def _add(archive: tarfile.TarFile, source: str, name: str, status: os.stat_result) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
        return
    with _left_out():
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            now = os.fstat(fd)
            if stat.S_ISREG(now.st_mode):
                entry.size = now.st_size
                archive.addfile(entry, Padded(file, entry.size))


class Padded:
    """A file that always has the size its header told, even when it shrinks meanwhile."""

    def __init__(self, file: IO[bytes], size_bytes: int) -> None:
        self._file, self._left = file, size_bytes

    def read(self, size: int = -1) -> bytes:
        """Return what is asked for, zeros where the file has no more."""
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= wanted
        return data + b"\0" * (wanted - len(data))
