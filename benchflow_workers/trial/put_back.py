"""Makes one folder of a sandbox what another was: only what differs is written.

Hardening tells what an agent may have touched by when it changed, so what an image
brought must stay the image's.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, Sandbox, Upload
from benchflow_workers.trial.frozen import SIZE_LIMIT_BYTES, Listing
from benchflow_workers.verifiers.environment import SYSTEM_PATH

__all__ = ["PUT_BACK_TIMEOUT_S", "Side", "put_back", "remove_paths"]

PUT_BACK_TIMEOUT_S: Final = 600.0
"""Seconds for listing a fresh folder, and for removing what is not to be in it."""

_REMOVE: Final = f'PATH={SYSTEM_PATH}; cd "$1" && xargs -0 rm -rf --'


@dataclass(frozen=True, slots=True)
class Side:
    """A folder of a sandbox on this host: a copy, and what the copy does not tell."""

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
        """Return the permission bits of a file or folder in the sandbox."""
        status = (self.tree / path).lstat()
        return self.listing.modes.get(path, stat.S_IMODE(status.st_mode) & 0o777)

    def is_like(self, other: Side, path: str, kind: str) -> bool:
        """Return whether both hold the same under a path where both hold the same kind."""
        if kind == "link":
            return self.listing.links[path] == other.listing.links[path]
        if self.mode(path) != other.mode(path):
            return False
        return kind == "folder" or filecmp.cmp(self.tree / path, other.tree / path, shallow=False)

    def upload(self, path: str, kind: str, place: str) -> Upload:
        """Return what places an entry below a folder of a sandbox."""
        target = f"{place.rstrip('/')}/{path}"
        if kind == "link":
            return Upload(target, link_to=self.listing.links[path])
        source = self.tree / path if kind == "file" else None
        return Upload(target, source=source, mode=self.mode(path))


async def put_back(
    sandbox: Sandbox, wanted: Side, fresh: Listing, scratch: Path, *, is_overlay: bool
) -> None:
    """Make a folder of a sandbox what it was in another.

    Args:
        sandbox: The fresh sandbox.
        wanted: What the folder was.
        fresh: What it is.
        scratch: Empty folder on this host.
        is_overlay: Leave in it what `wanted` does not have.

    Raises:
        SandboxError: The sandbox failed under it.
    """
    there = Side(scratch / "fresh", fresh)
    await sandbox.get(fresh.place, there.tree, limit_bytes=SIZE_LIMIT_BYTES)
    removed, uploads = await asyncio.to_thread(_change, wanted, there)
    if is_overlay:
        removed = [path for path in removed if path in wanted.kinds()]
    await remove_paths(sandbox, fresh.place, removed)
    await sandbox.put(uploads)
    await asyncio.to_thread(shutil.rmtree, there.tree, ignore_errors=True)


def _change(wanted: Side, there: Side) -> tuple[Sequence[str], Sequence[Upload]]:
    before, after = there.kinds(), wanted.kinds()
    removed = [path for path, kind in before.items() if after.get(path) != kind]
    uploads = [
        wanted.upload(path, kind, there.listing.place)
        for path, kind in after.items()
        if before.get(path) != kind or not wanted.is_like(there, path, kind)
    ]
    return removed, uploads


async def remove_paths(sandbox: Sandbox, place: str, paths: Sequence[str]) -> None:
    """Remove paths below a folder of a sandbox, with all they hold; what is not there is fine.

    Raises:
        SandboxError: `sandbox.exec_failed` when they cannot be removed; the sandbox failed.
    """
    if not paths:
        return
    names = b"\0".join(os.fsencode(f"./{path}") for path in paths) + b"\0"
    argv = ("sh", "-c", _REMOVE, "benchflow-remove", place)
    done = await sandbox.exec(Command(argv, timeout_s=PUT_BACK_TIMEOUT_S, workdir="/", stdin=names))
    if done.exit_code != 0:
        raise SandboxError(
            "sandbox.exec_failed",
            f"What the agent had removed could not be removed again (exit code {done.exit_code}).",
            hint="The image must have `xargs` and `rm`.",
        )
