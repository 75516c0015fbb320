"""In an agent's place: a turn that puts back the workspace an agent left in another job."""

from __future__ import annotations

import asyncio
import filecmp
import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import AgentError, ObjectNotFoundError, SandboxError
from benchflow_client.schema.plan import RegradedTrial
from benchflow_client.store.base import Store
from benchflow_client.store.layout import attempt_prefix
from benchflow_workers.agents.base import Agent, AgentContext, AgentRun
from benchflow_workers.sandbox.archive import unpack
from benchflow_workers.sandbox.base import Command, Sandbox, Upload
from benchflow_workers.trial.frozen import SIZE_LIMIT_BYTES, Listing, list_workspace
from benchflow_workers.verifiers.environment import SYSTEM_PATH

__all__ = ["RestoredTurn"]

RESTORE_TIMEOUT_S: Final = 600.0
"""Seconds for listing a fresh workspace, and for removing what the agent had removed."""

_UNPACKED_LIMIT_BYTES: Final = 2 * SIZE_LIMIT_BYTES
"""More than was kept, since an entry counts too."""

_REMOVE: Final = f'PATH={SYSTEM_PATH}; cd "$1" && xargs -0 rm -rf --'


@dataclass(frozen=True, slots=True)
class RestoredTurn:
    """Stands in for the agent whose workspace it restores, with its user and its hardening.

    Only what differs from the fresh sandbox is written: hardening tells what the agent
    may have touched by when it changed, and what the image brought must stay the image's.
    """

    original: Agent
    store: Store
    job: str
    kept: RegradedTrial

    @property
    def is_control(self) -> bool:
        """Whether the original was one."""
        return self.original.is_control

    @property
    def runs_as_user(self) -> bool:
        """Whether the original did."""
        return self.original.runs_as_user

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files: no agent runs."""
        del context
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Put the workspace back.

        Raises:
            AgentError: `agent.not_runnable` when what was kept is gone, damaged, or of another place.
            SandboxError: The sandbox failed under it.
        """
        del context
        fresh = await list_workspace(sandbox, timeout_s=RESTORE_TIMEOUT_S)
        if fresh.place != self.kept.frozen.workdir:
            raise self._unusable(f"stood at {self.kept.frozen.workdir}; the task's is now {fresh.place}")
        with tempfile.TemporaryDirectory(prefix="regrade-") as scratch:
            room = Path(scratch)
            frozen = await asyncio.to_thread(self._unpacked, room)
            await sandbox.get(fresh.place, room / "fresh", limit_bytes=SIZE_LIMIT_BYTES)
            change = await asyncio.to_thread(_change, room, frozen, fresh)
            await _remove(sandbox, fresh.place, change.removed)
            await sandbox.put(change.uploads)
        return AgentRun(exit_code=None, timed_out=False)

    def _unpacked(self, room: Path) -> Listing:
        """Fetch and unpack what was kept; returns its links and odd modes."""
        archive, frozen = room / "workspace.tar.gz", self.kept.frozen
        try:
            self.store.get_file(attempt_prefix(self.job, self.kept.folder) + frozen.key, archive)
        except ObjectNotFoundError as error:
            raise self._unusable("is not in the store any more") from error
        with archive.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != frozen.sha256:
                raise self._unusable("is not what was kept: its digest differs")
        (room / "frozen").mkdir()
        with tarfile.open(archive, "r:gz") as tar:
            entries = tar.getmembers()
        with gzip.open(archive) as stream:
            unpack(stream, room / "frozen", limit_bytes=_UNPACKED_LIMIT_BYTES)
        names = [(entry, entry.name.partition("/")[2]) for entry in entries]
        return Listing(
            place=frozen.workdir,
            count=len(entries),
            links={name: entry.linkname for entry, name in names if entry.issym()},
            modes={name: entry.mode for entry, name in names if _is_odd(entry)},
        )

    def _unusable(self, reason: str) -> AgentError:
        return AgentError(
            "agent.not_runnable",
            f"The workspace of trial {self.kept.trial!r} {reason}.",
            hint="Run the task again with --freeze-workspace.",
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What makes a frozen workspace of a fresh one."""

    removed: Sequence[str]
    uploads: Sequence[Upload]


def _change(room: Path, frozen: Listing, fresh: Listing) -> _Change:
    wanted, there = _Side(room / "frozen", frozen), _Side(room / "fresh", fresh)
    before, after = there.kinds(), wanted.kinds()
    removed = [path for path, kind in before.items() if after.get(path) != kind]
    uploads = [
        wanted.upload(path, kind)
        for path, kind in after.items()
        if before.get(path) != kind or not wanted.is_like(there, path, kind)
    ]
    return _Change(removed, uploads)


@dataclass(frozen=True, slots=True)
class _Side:
    """A workspace on this host: a copy, and what the copy does not tell."""

    tree: Path
    listing: Listing

    def kinds(self) -> Mapping[str, str]:
        """Return path -> `folder`, `file` or `link`, parents first."""
        found = {}
        for parent, folders, files in os.walk(self.tree):
            place = os.path.relpath(parent, self.tree)
            for kind, names in (("folder", folders), ("file", files)):
                found.update({os.path.normpath(os.path.join(place, name)): kind for name in sorted(names)})
        return {**found, **dict.fromkeys(sorted(self.listing.links), "link")}

    def mode(self, path: str) -> int:
        status = (self.tree / path).lstat()
        return self.listing.modes.get(path, stat.S_IMODE(status.st_mode) & 0o777)

    def is_like(self, other: _Side, path: str, kind: str) -> bool:
        if kind == "link":
            return self.listing.links[path] == other.listing.links[path]
        if self.mode(path) != other.mode(path):
            return False
        return kind == "folder" or filecmp.cmp(self.tree / path, other.tree / path, shallow=False)

    def upload(self, path: str, kind: str) -> Upload:
        target = f"{self.listing.place.rstrip('/')}/{path}"
        if kind == "link":
            return Upload(target, link_to=self.listing.links[path])
        source = self.tree / path if kind == "file" else None
        return Upload(target, source=source, mode=self.mode(path))


async def _remove(sandbox: Sandbox, place: str, paths: Sequence[str]) -> None:
    if not paths:
        return
    names = b"\0".join(os.fsencode(f"./{path}") for path in paths) + b"\0"
    argv = ("sh", "-c", _REMOVE, "benchflow-remove", place)
    done = await sandbox.exec(Command(argv, timeout_s=RESTORE_TIMEOUT_S, workdir="/", stdin=names))
    if done.exit_code != 0:
        raise SandboxError(
            "sandbox.exec_failed",
            f"What the agent had removed could not be removed again (exit code {done.exit_code}).",
            hint="The image must have `xargs` and `rm`.",
        )


def _is_odd(entry: tarfile.TarInfo) -> bool:
    """Return whether a copy on this host has another mode, so that it stays readable here."""
    wanted = stat.S_IRWXU if entry.isdir() else stat.S_IRUSR | stat.S_IWUSR
    return not entry.issym() and entry.mode & wanted != wanted
