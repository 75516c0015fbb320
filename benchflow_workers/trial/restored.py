"""In an agent's place: a turn that puts back the workspace an agent left in another job."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import stat
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import AgentError, ObjectNotFoundError
from benchflow_client.store.base import Store
from benchflow_client.store.layout import attempt_prefix
from benchflow_workers.agents.base import Agent, AgentContext, AgentRun
from benchflow_workers.sandbox.archive import unpack
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.trial.frozen import SIZE_LIMIT_BYTES, Listing, list_workspace
from benchflow_workers.trial.put_back import PUT_BACK_TIMEOUT_S, Side, put_back, remove_paths
from benchflow_workers.trial.records import Kept

__all__ = ["RestoredTurn"]

_UNPACKED_LIMIT_BYTES: Final = 2 * SIZE_LIMIT_BYTES
"""More than was kept, since an entry counts too."""


@dataclass(frozen=True, slots=True)
class RestoredTurn:
    """Stands in for the agent whose workspace it restores, with its user and its hardening."""

    original: Agent
    store: Store
    kept: Kept

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
        """Put the workspace back, or the submission files; tells what the agent did when it made them.

        Raises:
            AgentError: `agent.not_runnable` when what was kept is gone, damaged, or of another place.
            SandboxError: The sandbox failed under it.
        """
        del context
        with tempfile.TemporaryDirectory(prefix="regrade-") as scratch:
            room = Path(scratch)
            if self.kept.frozen.is_whole:
                await self._put_workspace(sandbox, room)
            else:
                await self._put_files(sandbox, room)
        done = self.kept.solver
        if done is None:
            return AgentRun(exit_code=None, timed_out=False)
        return AgentRun(exit_code=done.exit_code, timed_out=False, usage=done.usage, failures=done.failures)

    async def _put_workspace(self, sandbox: Sandbox, room: Path) -> None:
        fresh = await list_workspace(sandbox, timeout_s=PUT_BACK_TIMEOUT_S)
        if fresh.place != self.kept.frozen.workdir:
            raise self._unusable(f"stood at {self.kept.frozen.workdir}; the task's is now {fresh.place}")
        frozen = await asyncio.to_thread(self._unpacked, room)
        await put_back(sandbox, Side(room / "frozen", frozen), fresh, room, is_overlay=False)

    async def _put_files(self, sandbox: Sandbox, room: Path) -> None:
        side = Side(room / "frozen", await asyncio.to_thread(self._unpacked, room))
        files = [path for path, kind in side.kinds().items() if kind == "file"]
        missing = [path.lstrip("/") for path in self.kept.frozen.missing]
        await remove_paths(sandbox, "/", [*files, *missing])
        await sandbox.put([side.upload(path, "file", "/") for path in files])

    def _unpacked(self, room: Path) -> Listing:
        """Fetch and unpack what was kept; returns its links and odd modes."""
        archive, frozen = room / "workspace.tar.gz", self.kept.frozen
        try:
            self.store.get_file(attempt_prefix(self.kept.job, self.kept.folder) + frozen.key, archive)
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


def _is_odd(entry: tarfile.TarInfo) -> bool:
    """Return whether a copy on this host has another mode, so that it stays readable here."""
    wanted = stat.S_IRWXU if entry.isdir() else stat.S_IRUSR | stat.S_IWUSR
    return not entry.issym() and entry.mode & wanted != wanted
