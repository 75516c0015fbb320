"""Keeps a workspace as the agent left it, so that a verifier can judge it again without the agent.

Files, folders, links inside it and modes are kept, owners and times are not. What cannot
be kept costs no verdict: it is a warning, and the trial cannot be judged again.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_client.schema.trial import FrozenWorkspace
from benchflow_client.store.documents import json_document
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Command, Sandbox
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.verifiers.environment import SYSTEM_PATH

__all__ = ["EVIDENCE", "Listing", "freeze", "freeze_files", "list_workspace", "place_evidence", "real_links"]

EVIDENCE: Final = "evidence"
"""Folder of an attempt for what was frozen; one of that name from the sandbox goes."""

ARCHIVE: Final = "workspace.tar.gz"
MANIFEST: Final = "manifest.json"

SIZE_LIMIT_BYTES: Final = 20 << 30
ENTRY_LIMIT: Final = 200_000

FILE_LIMIT_BYTES: Final = 128 << 20
FILES_LIMIT_BYTES: Final = 256 << 20
"""Of one submission file, and of all of them together."""

_LISTING_LIMIT_BYTES: Final = 32 << 20
_CHUNK_BYTES: Final = 1 << 20
_TOO_MANY: Final = 98

_LIST: Final = f"""
set -u
PATH={SYSTEM_PATH}
cd "$1" && real=$(pwd -P) || exit 97
count=$(find . -xdev | wc -l) || exit 97
[ "$count" -le "$2" ] || {{ echo "$count" >&2; exit {_TOO_MANY}; }}
printf 'place\\0%s\\0\\0count\\0%s\\0\\0' "$real" "$count"
find . -xdev -type l -exec sh -c 'for path do printf "link\\0%s\\0%s\\0" "$path" "$(readlink "$path")"; done' sh {{}} +
find . -xdev \\( -type f ! -perm -0600 -o -type d ! -perm -0700 \\) -exec sh -c \\
  'for path do printf "mode\\0%s\\0%s\\0" "$path" "$(stat -c %a "$path")"; done' sh {{}} +
"""
"""What a copy does not tell: links, and modes under which the worker could not read or delete."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a workspace holds beyond what `Sandbox.get` copies.

    Attributes:
        place: Its real path in the sandbox.
        count: Entries in it, itself included.
        links: Path below it -> target.
        modes: Path below it -> permission bits, where its owner may not do all with it.
    """

    place: str
    count: int
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)


async def list_workspace(sandbox: Sandbox, *, timeout_s: float, folder: str | None = None) -> Listing:
    """Return what a copy of the workspace does not tell.

    Args:
        sandbox: Where it is.
        timeout_s: Seconds it may take.
        folder: Another folder of the sandbox; None = the workspace.

    Raises:
        SandboxError: `sandbox.exec_failed` when the sandbox cannot say it or holds too much.
    """
    argv = ("sh", "-c", _LIST, "benchflow-list", folder or sandbox.workdir, str(ENTRY_LIMIT + 1))
    done = await sandbox.exec(
        Command(argv, timeout_s=timeout_s, workdir="/", output_limit_bytes=_LISTING_LIMIT_BYTES)
    )
    if done.exit_code == _TOO_MANY:
        raise SandboxError(
            "sandbox.exec_failed",
            f"It holds {tail_text(done.stderr).strip()} entries; {ENTRY_LIMIT} are kept.",
        )
    if done.exit_code != 0 or done.timed_out or done.stdout_bytes > len(done.stdout):
        reason = tail_text(done.stderr, limit_chars=200) or f"exit code {done.exit_code}"
        raise SandboxError("sandbox.exec_failed", f"Its links could not be listed: {reason}")
    try:
        return _parsed(done.stdout)
    except (StopIteration, ValueError) as error:
        raise SandboxError(
            "sandbox.exec_failed",
            "Its links could not be listed: what came is no listing.",
            hint="An agent that was root may have changed the programs of the sandbox.",
        ) from error


def _parsed(output: bytes) -> Listing:
    words = os.fsdecode(output).split("\0")
    records = list(zip(words[0::3], words[1::3], words[2::3], strict=False))
    found: dict[str, dict[str, str]] = {"place": {}, "count": {}, "link": {}, "mode": {}}
    for kind, path, value in records:
        found.setdefault(kind, {})[path.removeprefix("./")] = value
    return Listing(
        place=next(iter(found["place"])),
        count=int(next(iter(found["count"]))),
        links=found["link"],
        modes={path: int(mode, 8) & 0o777 for path, mode in found["mode"].items()},
    )


async def freeze(
    sandbox: Sandbox, room: Path, *, redactor: Redactor, timeout_s: float
) -> tuple[FrozenWorkspace | None, tuple[str, ...]]:
    """Copy the workspace out of a sandbox and pack it into `room`.

    Args:
        sandbox: Where the agent has ended.
        room: New folder on this host; archive and manifest are left in it.
        redactor: Masks secrets before anything is packed.
        timeout_s: Seconds for listing.

    Returns:
        What was kept (None = nothing), and warnings.
    """
    try:
        await asyncio.to_thread(room.mkdir, parents=True)
        listing = await list_workspace(sandbox, timeout_s=timeout_s)
        if not await sandbox.get(listing.place, room / "tree", limit_bytes=SIZE_LIMIT_BYTES):
            return None, (f"The workspace was not kept: {listing.place} is no folder.",)
        return await asyncio.to_thread(_pack, room, listing, redactor)
    except SandboxError as error:
        return None, (f"The workspace was not kept, so it cannot be judged again. {error.message}",)
    except OSError as error:
        reason = error.strerror or error
        return None, (f"The workspace was not kept, so it cannot be judged again: {reason}.",)


async def freeze_files(
    sandbox: Sandbox, paths: Sequence[str], room: Path, *, redactor: Redactor
) -> tuple[FrozenWorkspace | None, tuple[str, ...]]:
    """Copy single files out of a sandbox and pack them into `room`; arguments and result as of `freeze`.

    A file that is not there, or is a link or a folder, counts as not left.
    """
    tree, missing, left = room / "tree", list[str](), FILES_LIMIT_BYTES
    try:
        await asyncio.to_thread(tree.mkdir, parents=True)
        for path in paths:
            copy = tree / path.lstrip("/")
            await asyncio.to_thread(copy.parent.mkdir, parents=True, exist_ok=True)
            # An entry counts 512 bytes.
            is_there = await sandbox.get(path, copy, limit_bytes=min(left, FILE_LIMIT_BYTES) + 512)
            if not is_there or not copy.is_file():
                await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)
                missing.append(path)
            else:
                left -= copy.stat().st_size
        listing = Listing(place="/", count=1 + len(list(_below(tree))))
        frozen, warnings = await asyncio.to_thread(_pack, room, listing, redactor)
    except SandboxError as error:
        return None, (f"The submission was not kept, so it cannot be judged again. {error.message}",)
    except OSError as error:
        reason = error.strerror or error
        return None, (f"The submission was not kept, so it cannot be judged again: {reason}.",)
    return frozen.model_copy(update={"is_whole": False, "missing": tuple(missing)}), warnings


def real_links(tree: Path, listing: Listing) -> Mapping[str, str]:
    """Return the links that lie in folders of a copy, by name.

    An agent that was root may have changed the programs that list: a link it made up, below
    another or in the place of a folder, would lead what is written later out of the workspace.
    """
    return {
        name: target
        for name, target in sorted(listing.links.items())
        if _is_real(tree, PurePosixPath(name)) and not os.path.lexists(tree / name)
    }


def _is_real(tree: Path, name: PurePosixPath) -> bool:
    is_below = not name.is_absolute() and ".." not in name.parts
    return is_below and (tree / name.parent).is_dir()


def place_evidence(room: Path, folder: Path) -> None:
    """Move what was frozen into an attempt's folder; what a sandbox left in its place goes."""
    target = folder / EVIDENCE
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.move(room, target)


def _pack(room: Path, listing: Listing, redactor: Redactor) -> tuple[FrozenWorkspace, tuple[str, ...]]:
    tree = room / "tree"
    before = _stamps(tree)
    redactor.tree(tree)
    masked = len(set(_stamps(tree).items()) - set(before.items()))
    files = _write_archive(room / ARCHIVE, tree, listing)
    shutil.rmtree(tree)
    frozen = FrozenWorkspace(
        key=f"{EVIDENCE}/{ARCHIVE}",
        sha256=_digest(room / ARCHIVE),
        workdir=listing.place,
        entries=len(files),
        size_bytes=sum(entry.get("size_bytes", 0) for entry in files),
    )
    manifest = {**frozen.model_dump(mode="json"), "files": files}
    (room / MANIFEST).write_bytes(redactor.bytes(json_document(manifest)))
    warnings = []
    if masked:
        warnings.append(
            f"Secrets were masked in {masked} files of the kept workspace; judged again it may differ."
        )
    if (left_out := listing.count - 1 - len(files)) > 0:
        warnings.append(f"{left_out} entries of the workspace could not be kept; judged again it may differ.")
    return frozen, tuple(warnings)


def _stamps(tree: Path) -> dict[Path, tuple[int, int]]:
    """Return what changes with a file's content here: nobody else writes."""
    found = {}
    for path in _below(tree):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            found[path] = (status.st_ino, status.st_mtime_ns)
    return found


def _below(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        path = folder / name
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _write_archive(archive: Path, tree: Path, listing: Listing) -> list[dict[str, Any]]:
    """Write the tree and then its links as one archive; returns a line per entry."""
    files = []
    with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT, compresslevel=1) as tar:
        for path in _below(tree):
            name = path.relative_to(tree).as_posix()
            entry = _entry(name, path, listing.modes)
            files.append({"path": _shown(name), "mode": f"{entry.mode:o}"} | _add(tar, entry, path))
        for name, target in real_links(tree, listing).items():
            link = tarfile.TarInfo(f"workspace/{name}")
            link.type, link.linkname, link.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(link)
            files.append({"path": _shown(name), "link_to": _shown(target)})
    return files


def _entry(name: str, path: Path, modes: Mapping[str, int]) -> tarfile.TarInfo:
    status = path.lstat()
    entry = tarfile.TarInfo(f"workspace/{name}")
    entry.mode = modes.get(name, stat.S_IMODE(status.st_mode) & 0o777)
    if path.is_dir():
        entry.type = tarfile.DIRTYPE
    else:
        entry.size = status.st_size
    return entry


def _add(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> dict[str, Any]:
    if entry.isdir():
        tar.addfile(entry)
        return {}
    with path.open("rb") as file:
        reader = _Hashed(file)
        tar.addfile(entry, reader)
    return {"size_bytes": entry.size, "sha256": reader.digest.hexdigest()}


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _shown(name: str) -> str:
    """Return a name of any bytes as text a document can hold."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
