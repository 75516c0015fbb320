"""Uploads as a tar stream, and tar streams as files on the worker.

What comes out of a sandbox is hostile: extraction makes regular files and
folders below one target, within a size limit, and nothing else.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import posixpath
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, Self, cast

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Upload, path_below

__all__ = ["Readable", "pack", "sandbox_path", "spool", "unpack"]

logger = logging.getLogger(__name__)

_SPOOL_BYTES = 8 << 20  # an archive up to this size never touches the disk
_CHUNK_BYTES = 1 << 18
_LONGEST_HEADER_BYTES = 1 << 20  # extended headers are read into memory whole; a path has 4096 bytes at most
_DEEPEST_FOLDERS = 100  # no log lies deeper, and every walk over the copy stays short of Python's stack
_LONGEST_PATH_BYTES = 1024  # the longest key of an object store; the worker's own folder has room before it
_EXTENDED_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


_ITS_OWN_FAULT = frozenset({
    *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP),
    *(errno.EINVAL, errno.EILSEQ),  # names the worker's file system does not know
})
"""What is wrong with one entry's name and with no other; a full disk is not in it."""


class Readable(Protocol):
    """Anything with a blocking `read`."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, none at the end."""
        ...


def sandbox_path(path: str) -> str:
    """Return an absolute path in a sandbox in its shortest form.

    Raises:
        SandboxError: `sandbox.transfer_failed` when it is not absolute or climbs with `..`.
    """
    if not path.startswith("/") or ".." in path.split("/"):
        raise SandboxError(
            "sandbox.transfer_failed",
            f"{path!r} is not an absolute path without '..', so it names no place in a sandbox.",
            hint="Give the full path, e.g. /logs/agent.",
        )
    return "/" + posixpath.normpath(path).lstrip("/")


def spool() -> IO[bytes]:
    """Return an empty file for an archive, in memory while it is small; the caller closes it."""
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES))


def pack(uploads: Sequence[Upload]) -> IO[bytes]:
    """Write uploads as one tar whose names are relative to `/`, and return it rewound.

    Only what the uploads name is in it: missing parents are left to whoever
    unpacks, so that folders already there keep their modes. The caller closes it.

    Raises:
        SandboxError: `sandbox.transfer_failed` when a source cannot be read or a target is no absolute path.
    """
    file = spool()
    try:
        # GNU format: names of any length, any bytes in them, and every tar reads it.
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for upload in uploads:
                _pack_one(archive, upload)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _pack_one(archive: tarfile.TarFile, upload: Upload) -> None:
    entry = tarfile.TarInfo(sandbox_path(upload.target).lstrip("/"))
    entry.uid, entry.gid, entry.mtime = upload.uid, upload.gid, int(time.time())
    if upload.source is not None:
        try:
            _pack_source(archive, upload.source, entry, upload.mode)
        except OSError as error:
            raise SandboxError(
                "sandbox.transfer_failed",
                f"{upload.source} cannot be placed at {upload.target}: {error.strerror or error}.",
                hint="Check that it exists on the worker and can be read.",
            ) from error
    elif upload.link_to is not None:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, upload.link_to, 0o777
        archive.addfile(entry)
    elif upload.content is not None:
        entry.size, entry.mode = len(upload.content), 0o644 if upload.mode is None else upload.mode
        archive.addfile(entry, io.BytesIO(upload.content))
    else:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755 if upload.mode is None else upload.mode
        archive.addfile(entry)


def _pack_source(archive: tarfile.TarFile, source: Path, entry: tarfile.TarInfo, mode: int | None) -> None:
    """Add a file, or a folder and all below it, with the owner of `entry`."""
    source = source.resolve(strict=True)
    root_name = entry.name
    _pack_path(archive, source, entry, mode)
    if not source.is_dir():
        return
    for path in _below(source):
        part = tarfile.TarInfo(posixpath.join(root_name, path.relative_to(source).as_posix()))
        part.uid, part.gid = entry.uid, entry.gid
        _pack_path(archive, path, part, None)


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder in a stable order, parents first, links not followed."""
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        yield Path(item.path)
        if item.is_dir(follow_symlinks=False):
            yield from _below(Path(item.path))


def _pack_path(archive: tarfile.TarFile, path: Path, entry: tarfile.TarInfo, mode: int | None) -> None:
    status = path.lstat()
    entry.mode = stat.S_IMODE(status.st_mode) if mode is None else mode
    entry.mtime = int(status.st_mtime)
    if stat.S_ISREG(status.st_mode):
        with path.open("rb") as file:
            entry.size = status.st_size
            archive.addfile(entry, file)
    elif stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(entry)
    else:
        logger.debug("not uploaded, neither file, folder nor link: %s", path)


def unpack(stream: Readable, target: Path, *, limit_bytes: int) -> bool:
    """Write the one file or folder of a tar stream to `target`.

    The stream holds entries `name` and `name/...`, as an archive of one path
    does; `name` becomes `target`. Links and devices are left out; a second hard
    link to a file in the stream becomes a copy of it. What lies too deep or has no
    possible name here is left out too. Modes are kept without set-id bits; the owner here can always read, write and delete.

    Returns:
        False when the stream holds nothing to write, e.g. only a link.

    Raises:
        SandboxError: `sandbox.transfer_failed` when the stream is no tar, more than
            `limit_bytes` would be written (an entry counts 512 bytes), or the disk refuses.
    """
    unpacker = _Unpacker(target, limit_bytes)
    try:
        with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_GuardedEntry) as archive:
            while (entry := archive.next()) is not None:
                unpacker.write(archive, entry)
                archive.members.clear()  # type: ignore[attr-defined]  # or a million entries stay in memory
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise SandboxError(
            "sandbox.transfer_failed",
            f"The sandbox sent a broken archive for {target}: {error}.",
            hint="The sandbox may have died while its files were copied, or its own `tar` is damaged.",
        ) from error
    except OSError as error:
        raise SandboxError(
            "sandbox.transfer_failed",
            f"Files of the sandbox cannot be written to {target}: {error.strerror or error}.",
            hint="Check space and permissions on the worker.",
        ) from error
    return not unpacker.is_untouched


class _GuardedEntry(tarfile.TarInfo):
    """An entry whose extended header may not fill the worker's memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _EXTENDED_HEADERS and entry.size > _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"extended header of {entry.size} bytes")
        return entry


@dataclass
class _Unpacker:
    """Writes entries below a target and counts what it wrote."""

    target: Path
    limit_bytes: int
    is_untouched: bool = True
    _written_bytes: int = 0

    def write(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        """Write one entry, or leave it out."""
        path = self._place(entry.name)
        if path is None or not (entry.isreg() or entry.isdir() or entry.islnk()):
            return
        self._count(tarfile.BLOCKSIZE)
        try:
            if entry.isdir():
                self._write_folder(path, entry)
            elif entry.isreg():
                self._write_file(path, archive.extractfile(entry), entry)
            else:
                self._copy_of(path, entry)
        except OSError as error:
            if error.errno not in _ITS_OWN_FAULT:
                raise
            logger.warning("left out, its path cannot exist here: %s (%s)", entry.name, error.strerror)

    def _place(self, name: str) -> Path | None:
        """Return where an entry goes; its first part stands for the target itself."""
        parts = [part for part in name.split("/") if part not in {"", "."}]
        if len(parts) > _DEEPEST_FOLDERS or len(os.fsencode(name)) > _LONGEST_PATH_BYTES:
            logger.debug("left out, too deep: %.100s...", name)
            return None
        return path_below(self.target, PurePosixPath(*parts[1:]))

    def _write_folder(self, path: Path, entry: tarfile.TarInfo) -> None:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod((entry.mode & 0o777) | stat.S_IRWXU)
        self.is_untouched = False

    def _write_file(self, path: Path, source: Readable | None, entry: tarfile.TarInfo) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with path.open("xb") as file:
            while source is not None and (chunk := source.read(_CHUNK_BYTES)):
                self._count(len(chunk))
                file.write(chunk)
            os.fchmod(file.fileno(), (entry.mode & 0o777) | stat.S_IRUSR | stat.S_IWUSR)
        self.is_untouched = False

    def _copy_of(self, path: Path, entry: tarfile.TarInfo) -> None:
        original = self._place(entry.linkname)
        if original is None or not original.is_file():
            return
        with original.open("rb") as source:
            self._write_file(path, source, entry)

    def _count(self, size_bytes: int) -> None:
        self._written_bytes += size_bytes
        if self._written_bytes > self.limit_bytes:
            raise SandboxError(
                "sandbox.transfer_failed",
                f"More than {self.limit_bytes} bytes would be written to {self.target}, so copying stopped.",
                hint="Have the task write less into the folders that are kept.",
            )
