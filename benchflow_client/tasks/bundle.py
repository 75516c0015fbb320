"""Task folders as one file: the same bytes wherever they are packed, safe wherever they are unpacked."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Protocol

from benchflow_client.errors import StoreError, StoreFullError, TaskError
from benchflow_client.tasks.findings import shown_name
from benchflow_client.tasks.tree import Entry, obstacles, walk

SIZE_LIMIT_BYTES = 2 << 30
"""Most bytes of one task: more belongs into its image."""

_FILE_MODES = {False: 0o644, True: 0o755}
"""Permission bits by whether the owner may execute the file; nothing else is kept."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed folder.

    Attributes:
        digest: SHA-256 of the tar, 64 hex digits; equal folders have equal digests.
        size_bytes: Size of the tar.
        files: Number of files and links in it.
    """

    digest: str
    size_bytes: int
    files: int


class _Sink(Protocol):
    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""
        ...


class _Hasher:
    """Takes a tar as it is written: counts, digests, passes it on."""

    def __init__(self, sink: _Sink | None) -> None:
        self._sink = sink
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        """Take the next bytes."""
        self._digest.update(data)
        self.size_bytes += len(data)
        if self._sink is not None:
            try:
                self._sink.write(data)
            except OSError as error:
                raise _store_error("the bundle", error) from error
        return len(data)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def pack(folder: Path, target: Path, *, limit_bytes: int = SIZE_LIMIT_BYTES) -> Bundle:
    """Write a folder as an uncompressed tar; `target` appears whole or not at all.

    Guarantees: the bytes depend only on names, exec bits, contents and links; version
    control, caches and desktop files are left out.

    Args:
        folder: What to pack.
        target: File to write; missing parent folders are made.
        limit_bytes: Most bytes of content.

    Raises:
        TaskError: A link leaves the folder, something is no file, folder or link, a file
            cannot be read, or there is more than `limit_bytes`; `problems` names each.
        StoreError: `target` cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".pack-", delete=False) as file:
            try:
                bundle = _write(folder, file, limit_bytes)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise _store_error(str(target), error) from error
    return bundle


def digest_of(folder: Path, *, limit_bytes: int = SIZE_LIMIT_BYTES) -> str:
    """Return the digest `pack` would give, writing nothing.

    Raises:
        TaskError: As `pack`.
    """
    return _write(folder, None, limit_bytes).digest


def _write(folder: Path, sink: _Sink | None, limit_bytes: int) -> Bundle:
    found = obstacles(folder)
    if found:
        message = f"{shown_name(folder.name)!r} cannot be bundled: {found[0]}."
        raise TaskError(message, problems=found, hint="Correct what is listed and try again.")
    hasher, files, size_bytes = _Hasher(sink), 0, 0
    with tarfile.open(fileobj=hasher, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for entry in walk(folder):
            size_bytes += _add(tar, folder, entry, limit_bytes - size_bytes)
            files += entry.kind != "folder"
    return Bundle(hasher.digest, hasher.size_bytes, files)


def _add(tar: tarfile.TarFile, folder: Path, entry: Entry, room_bytes: int) -> int:
    """Add one entry and return its size."""
    info = tarfile.TarInfo(entry.path)  # no owner and time 0 unless set
    if entry.kind == "file":
        return _add_file(tar, folder / entry.path, info, room_bytes)
    info.type, info.mode = (tarfile.SYMTYPE, 0o777) if entry.kind == "link" else (tarfile.DIRTYPE, 0o755)
    info.linkname = entry.detail if entry.kind == "link" else ""
    tar.addfile(info)
    return 0


def _add_file(tar: tarfile.TarFile, path: Path, info: tarfile.TarInfo, room_bytes: int) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            info.size, info.mode = status.st_size, _FILE_MODES[bool(status.st_mode & stat.S_IXUSR)]
            if info.size > room_bytes:
                raise TaskError(
                    f"{shown_name(info.name)} makes the task larger than the limit for bundles.",
                    problems=(f"{shown_name(info.name)}: the task is too large with it ({info.size} bytes)",),
                    hint="Put large files into the image, or fetch them in environment/Dockerfile.",
                )
            tar.addfile(info, file)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"{shown_name(info.name)}: cannot be read, or changed while it was: {reason}"
        raise TaskError(f"Cannot bundle {problem}.", problems=(problem,)) from error
    return info.size


def unpack(
    bundle: Path, folder: Path, *, digest: str | None = None, limit_bytes: int = SIZE_LIMIT_BYTES
) -> None:
    """Unpack a bundle; `folder` appears whole or not at all.

    Safe when several processes do it at once, and when it is done already: a
    folder that holds something is left as it is.

    Args:
        bundle: A file written by `pack`.
        folder: Folder to make; missing parents are made.
        digest: SHA-256 the file must have; None = not checked.
        limit_bytes: Most bytes of content.

    Raises:
        TaskError: The file is damaged, does not have the digest, is too large, or holds
            what `pack` never writes: paths or links that leave it, devices, hard links.
        StoreError: `bundle` cannot be read or `folder` cannot be written.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpack-"))
        try:
            with _opened(bundle) as file:
                _check_digest(file, digest)
                _extract(file, staging, limit_bytes)
            staging.chmod(0o755)
            _publish(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise _store_error(str(folder), error) from error


def _opened(bundle: Path) -> BufferedReader:
    try:
        return open(bundle, "rb")
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"The bundle {shown_name(str(bundle))} cannot be read: {reason}.") from error


def _publish(staging: Path, folder: Path) -> None:
    """Give the finished folder its name, unless another process was first."""
    try:
        staging.rename(folder)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise


def _check_digest(file: BufferedReader, digest: str | None) -> None:
    if digest is not None:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        if found != digest:
            raise _damaged(f"its digest is {found}, not {digest}")


def _extract(file: BufferedReader, root: Path, limit_bytes: int) -> None:
    """Extract into an empty folder: files first, links last, so that nothing is written through a link."""
    folders, links, room_bytes = {""}, list[tuple[str, str]](), limit_bytes
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                _check_name(member.name, folders)
                if member.isdir():
                    (root / member.name).mkdir(mode=0o755)
                    folders.add(member.name)
                elif member.issym():
                    links.append((member.name, member.linkname))
                else:
                    room_bytes -= member.size
                    _extract_file(tar, member, root, room_bytes)
            _check_end(file, tar.offset)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise _damaged(str(error)) from error
    except FileExistsError as error:
        raise _damaged("it holds a path twice") from error
    _make_links(root, links)


def _check_end(file: BufferedReader, offset: int) -> None:
    """Refuse a tar that does not end in empty blocks: the reader takes a damaged header for the end."""
    file.seek(offset)
    rest = file.read(2 * tarfile.RECORDSIZE)
    if len(rest) < 2 * tarfile.BLOCKSIZE or any(rest):
        raise _damaged("it is cut short or damaged")


def _check_name(name: str, folders: set[str]) -> None:
    """Refuse a path that leaves the folder, is not in its plain form, or has no folder to stand in."""
    parent, _, last = name.rpartition("/")
    if name.startswith("/") or last in {"", ".", ".."} or "\0" in name or parent not in folders:
        raise _damaged(f"it holds the path {shown_name(name)!r}")


def _extract_file(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path, room_bytes: int) -> None:
    source = None if member.issparse() or not member.isreg() else tar.extractfile(member)
    if source is None:
        raise _damaged(f"{shown_name(member.name)!r} is no file, folder or link")
    if room_bytes < 0:
        raise _damaged("it holds more than the limit for bundles")
    with open(root / member.name, "xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
        if file.tell() != member.size:
            raise _damaged(f"{shown_name(member.name)!r} is cut short")
        os.fchmod(file.fileno(), _FILE_MODES[bool(member.mode & stat.S_IXUSR)])


def _make_links(root: Path, links: list[tuple[str, str]]) -> None:
    for name, target in links:
        try:
            os.symlink(target, root / name)
        except FileExistsError as error:
            raise _damaged("it holds a path twice") from error
        except (ValueError, FileNotFoundError) as error:
            raise _damaged(f"it holds a link without a target at {shown_name(name)!r}") from error
    found = obstacles(root)
    if found:
        raise _damaged(found[0])


def _damaged(reason: str) -> TaskError:
    return TaskError(
        f"The bundle cannot be unpacked: {reason}.",
        problems=(reason,),
        hint="Submit the job again, so that the bundle is stored anew.",
    )


def _store_error(path: str, error: OSError) -> StoreError:
    kind = StoreFullError if error.errno in {errno.ENOSPC, errno.EDQUOT} else StoreError
    hint = "Free space there, or choose another folder." if kind is StoreFullError else ""
    return kind(f"{shown_name(path)} cannot be written: {error.strerror or error}.", hint=hint)
