"""Carries an agent's work from its sandbox into another: limits, copies, and hashes on arrival.

The workspace comes whole; of the rest of the sandbox only what is named. What is larger
than may be moved is told from what was as large before the agent came.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from benchflow_client.errors import SandboxError
from benchflow_client.schema.separate import CarriedPath
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Command, Sandbox, Upload
from benchflow_workers.trial.frozen import (
    ENTRY_LIMIT,
    SIZE_LIMIT_BYTES,
    Listing,
    list_workspace,
    real_links,
)
from benchflow_workers.trial.put_back import PUT_BACK_TIMEOUT_S, Side, put_back
from benchflow_workers.verifiers.environment import SYSTEM_PATH

__all__ = ["Carried", "Load", "Route", "deliver", "measure", "outside_writes", "overload", "pick_up"]

Kind = Literal["workspace", "artifact", "include"]

REST_LIMIT_BYTES: Final = 1 << 30
REST_ENTRY_LIMIT: Final = 10_000
"""Of artifacts and further paths together."""

SHARED_FOLDERS: Final = frozenset({
    *("/", "/home", "/root", "/srv", "/opt", "/mnt", "/media", "/tmp", "/var", "/var/tmp"),
    *("/usr", "/usr/local", "/usr/src", "/etc"),
})  # fmt: skip
"""Workspaces that hold more than the agent's work; what the fresh sandbox has there besides stays."""

_LISTED_WRITES: Final = 1000
_OUTPUT_LIMIT_BYTES: Final = 8 << 20
_UNKNOWN: Final = 98  # exit code of a program whose `find` cannot tell changes
_MARK: Final = "/opt/benchflow/turn-begins"

_MEASURE: Final = f"""
set -u
PATH={SYSTEM_PATH}
limit=$1
shift
for place do
  entries=0 bytes=0
  if [ -e "$place" ]; then
    entries=$(find "$place" -xdev | wc -l) || exit 97
    if [ "$entries" -le "$limit" ]; then
      bytes=$(find "$place" -xdev -type f -exec stat -c %s {{}} + |
        {{ all=0; while read -r size; do all=$((all + size)); done; echo "$all"; }}) || exit 97
    fi
  fi
  echo "$entries" "$bytes"
done
mkdir -p {posixpath.dirname(_MARK)} && {{ [ -e {_MARK} ] || : >{_MARK}; }}
"""
"""Entries and bytes below each path; leaves a mark of root's when it is first run."""

_WRITES: Final = f"""
set -u
PATH={SYSTEM_PATH}
find {_MARK} -cnewer {_MARK} >/dev/null 2>&1 || exit {_UNKNOWN}
find / \\( -path /proc -o -path /sys -o -path /dev -o -path /logs -o -path "$1" \\) -prune -o \\
  -type f -cnewer {_MARK} -print 2>/dev/null |
  {{ all=0; while IFS= read -r path; do
    all=$((all + 1)); [ "$all" -gt {_LISTED_WRITES} ] || printf '%s\\0' "$path"
  done; printf '%s' "$all"; }}
"""


@dataclass(frozen=True, slots=True)
class Route:
    """What is carried.

    Attributes:
        workspace: Where the agent worked.
        rest: Path -> why it is carried; none of them lies in the workspace or in another.
    """

    workspace: str
    rest: Mapping[str, Kind] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: str, *, artifacts: Iterable[str], includes: Iterable[str]) -> Route:
        """Return the route of a workspace and further paths; relative ones are the workspace's."""
        named: dict[str, Kind] = {posixpath.join(workspace, path): "artifact" for path in artifacts}
        named |= dict.fromkeys(includes, "include")
        rest: dict[str, Kind] = {}
        for path in sorted({posixpath.normpath(path) for path in named}):
            inside = (workspace, *rest)
            if not any(PurePosixPath(path).is_relative_to(other) for other in inside):
                rest[path] = named.get(path, "artifact")
        return cls(workspace, rest)


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to carry: entries and bytes of the workspace, and of the rest together."""

    workspace_entries: int
    workspace_bytes: int
    rest_entries: int
    rest_bytes: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """One file or folder on its way; `side` is None for a file, `tree` is the copy of either."""

    path: str
    kind: Kind
    tree: Path
    side: Side | None
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Carried:
    """An agent's work on this host.

    Attributes:
        workdir: Where its commands ran.
        workspace: The workspace: its copy, its links and modes.
        pieces: All that is carried, the workspace first.
        missing: Paths where nothing was.
    """

    workdir: str
    workspace: Side
    pieces: tuple[_Piece, ...]
    missing: Mapping[str, Kind]

    def warnings(self) -> tuple[str, ...]:
        """Return what of folders could not be carried, as sentences."""
        sides = [(piece.path, piece.side) for piece in self.pieces if piece.side is not None]
        left_out = [(path, side.listing.count - 1 - len(side.kinds())) for path, side in sides]
        return tuple(
            f"{count} entries of {path} could not be moved into the tests' own sandbox."
            for path, count in left_out
            if count > 0
        )

    def beside(self) -> tuple[str, ...]:
        """Return the paths besides the workspace under which there are files."""
        return tuple(piece.path for piece in self.pieces[1:] if piece.digests)

    def records(self) -> tuple[CarriedPath, ...]:
        """Return what was carried, for people."""
        gone = (CarriedPath(path=path, kind=kind, status="missing") for path, kind in self.missing.items())
        return (*map(_record, self.pieces), *gone)


async def measure(sandbox: Sandbox, route: Route, *, timeout_s: float) -> Load:
    """Return what there is to carry; the first call marks the time from which writes are told.

    Raises:
        SandboxError: `sandbox.exec_failed` when the sandbox cannot say it.
    """
    argv = ("sh", "-c", _MEASURE, "benchflow-measure", str(ENTRY_LIMIT), f"{route.workspace}/.", *route.rest)
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, workdir="/"))
    words = done.stdout.split()
    is_whole = len(words) == 2 * (1 + len(route.rest)) and all(word.isdigit() for word in words)
    if done.exit_code != 0 or done.timed_out or not is_whole:
        reason = tail_text(done.stderr, limit_chars=200) or f"exit code {done.exit_code}"
        raise SandboxError("sandbox.exec_failed", f"The agent's work could not be measured: {reason}")
    entries, sizes = list(map(int, words[::2])), list(map(int, words[1::2]))
    return Load(entries[0], sizes[0], sum(entries[1:]), sum(sizes[1:]))


def overload(load: Load) -> str:
    """Return which limit is passed, as the end of a sentence; empty = none."""
    limits = (
        ("the workspace", load.workspace_entries, ENTRY_LIMIT, "entries"),
        ("the workspace", load.workspace_bytes, SIZE_LIMIT_BYTES, "bytes"),
        ("artifacts and included paths", load.rest_entries, REST_ENTRY_LIMIT, "entries"),
        ("artifacts and included paths", load.rest_bytes, REST_LIMIT_BYTES, "bytes"),
    )
    over = (f"{what}: {found} {unit}; {most} are moved" for what, found, most, unit in limits if found > most)
    return next(over, "")


async def outside_writes(
    sandbox: Sandbox, route: Route, *, timeout_s: float
) -> tuple[tuple[str, ...], int] | None:
    """Return files written outside the workspace since `measure`, and how many; None = not known."""
    argv = ("sh", "-c", _WRITES, "benchflow-writes", route.workspace)
    done = await sandbox.exec(
        Command(argv, timeout_s=timeout_s, workdir="/", output_limit_bytes=_OUTPUT_LIMIT_BYTES)
    )
    *paths, count = done.stdout.split(b"\0")
    if done.exit_code != 0 or not count.isdigit() or done.stdout_bytes > len(done.stdout):
        return None
    return tuple(path.decode("utf-8", "backslashreplace") for path in paths), int(count)


async def pick_up(sandbox: Sandbox, route: Route, room: Path, *, timeout_s: float) -> Carried:
    """Copy an agent's work to this host.

    Args:
        sandbox: Where nothing of the agent runs any more.
        route: What is carried.
        room: New folder on this host.
        timeout_s: Seconds for each listing.

    Raises:
        SandboxError: It cannot be copied.
    """
    await asyncio.to_thread(room.mkdir, parents=True)
    listing = await list_workspace(sandbox, timeout_s=timeout_s)
    tree = room / "tree"
    if not await sandbox.get(listing.place, tree, limit_bytes=2 * SIZE_LIMIT_BYTES):
        raise SandboxError("sandbox.transfer_failed", f"The workspace {listing.place} is no folder.")
    side = _side(tree, listing)
    pieces = [_Piece(listing.place, "workspace", tree, side, await asyncio.to_thread(_digests, tree))]
    missing: dict[str, Kind] = {}
    for number, (path, kind) in enumerate(route.rest.items()):
        copy = room / str(number)
        if not await sandbox.get(path, copy, limit_bytes=2 * REST_LIMIT_BYTES):
            missing[path] = kind
            continue
        further = None
        if copy.is_dir():
            further = _side(copy, await list_workspace(sandbox, timeout_s=timeout_s, folder=path))
        pieces.append(_Piece(path, kind, copy, further, await asyncio.to_thread(_digests, copy)))
    return Carried(route.workspace, side, tuple(pieces), missing)


def _side(tree: Path, listing: Listing) -> Side:
    return Side(tree, replace(listing, links=real_links(tree, listing)))


async def deliver(sandbox: Sandbox, carried: Carried, room: Path) -> None:
    """Place an agent's work in a fresh sandbox, and compare every file with what was taken.

    Args:
        sandbox: The fresh sandbox; its workspace is where the agent's was.
        carried: The work.
        room: Folder on this host for copies.

    Raises:
        SandboxError: `sandbox.transfer_failed` when what arrived is not what was taken; the sandbox failed.
    """
    for piece in carried.pieces:
        scratch = room / "arriving"
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        await asyncio.to_thread(scratch.mkdir)
        if piece.side is None:
            await sandbox.put([Upload(piece.path, source=piece.tree)])
            await _check_file(sandbox, piece, scratch)
        else:
            await _deliver_folder(sandbox, piece, piece.side, scratch)


async def _deliver_folder(sandbox: Sandbox, piece: _Piece, side: Side, scratch: Path) -> None:
    folder = sandbox.workdir if piece.kind == "workspace" else piece.path
    if piece.kind != "workspace":
        await sandbox.put([Upload(folder)])
    fresh = await list_workspace(sandbox, timeout_s=PUT_BACK_TIMEOUT_S, folder=folder)
    await put_back(sandbox, side, fresh, scratch, is_overlay=_is_overlay(piece))
    there = Side(
        scratch / "there", await list_workspace(sandbox, timeout_s=PUT_BACK_TIMEOUT_S, folder=folder)
    )
    await sandbox.get(there.listing.place, there.tree, limit_bytes=4 * SIZE_LIMIT_BYTES)
    digests = await asyncio.to_thread(_digests, there.tree)
    if _is_overlay(piece):
        digests = {path: digest for path, digest in digests.items() if path in piece.digests}
    links = {path: there.listing.links.get(path) for path in side.listing.links}
    if digests != piece.digests or links != side.listing.links:
        raise _changed(piece, digests)


async def _check_file(sandbox: Sandbox, piece: _Piece, scratch: Path) -> None:
    copy = scratch / "file"
    is_there = await sandbox.get(piece.path, copy, limit_bytes=2 * REST_LIMIT_BYTES)
    digests = await asyncio.to_thread(_digests, copy) if is_there else {}
    if digests != piece.digests:
        raise _changed(piece, digests)


def _changed(piece: _Piece, digests: Mapping[str, str]) -> SandboxError:
    differing = sorted(set(digests.items()) ^ set(piece.digests.items()))
    first = _shown(differing[0][0]) if differing else "a link"
    return SandboxError(
        "sandbox.transfer_failed",
        f"What arrived of {piece.path} is not what the agent left: {first} differs.",
        hint="See what in the image changes these files, or whether its disk is full.",
    )


def _is_overlay(piece: _Piece) -> bool:
    """Return whether the fresh sandbox keeps what the agent did not have."""
    if piece.kind != "workspace":
        return True
    return piece.path in SHARED_FOLDERS or posixpath.dirname(piece.path) == "/home"


def _digests(tree: Path) -> Mapping[str, str]:
    """Return path -> SHA-256 of every regular file; that of a file alone is under `.`."""
    if not tree.is_dir():
        return {".": _digest(tree)}
    found = {}
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, tree)] = _digest(Path(path))
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _record(piece: _Piece) -> CarriedPath:
    sizes: Sequence[int] = [piece.tree.stat().st_size]
    entries = 1
    if piece.side is not None:
        kinds = piece.side.kinds()
        sizes = [(piece.tree / path).lstat().st_size for path in piece.digests]
        entries = len(kinds)
    whole = hashlib.sha256()
    for path, digest in sorted(piece.digests.items()):
        whole.update(os.fsencode(path) + b"\0" + digest.encode() + b"\n")
    return CarriedPath(
        path=piece.path,
        kind=piece.kind,
        status="ok",
        files=len(piece.digests),
        entries=entries,
        size_bytes=sum(sizes),
        sha256=whole.hexdigest(),
        is_overlay=_is_overlay(piece),
    )


def _shown(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
