"""Where local sandboxes keep what they hold, and how leftovers of any process are found and removed."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.local.cgroups import remove_groups

logger = logging.getLogger(__name__)

_RECORD = "sandbox.json"
_ID = re.compile(r"[a-z0-9][a-z0-9_-]*")
_DEATH_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """What another process must know of a sandbox to find and remove it.

    Attributes:
        id: Name of its folder.
        labels: Who it belongs to.
        pid: Its first process as seen from the host; None = not started yet.
        pid_started: Start time of that process in clock ticks since boot, so
            that a pid used again is not taken for it.
        groups: Folders of its control groups.
    """

    id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    pid_started: int = 0
    groups: tuple[str, ...] = ()


class Places:
    """The folders below the state folder of local sandboxes.

    Args:
        state_dir: The folder; made when missing, for its owner only.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.sandboxes = state_dir / "sandboxes"
        self.layers = state_dir / "layers"
        self.bases = state_dir / "bases"
        self.locks = state_dir / "locks"

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            SandboxError: `sandbox.unavailable` when they cannot be made.
        """
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (self.sandboxes, self.layers, self.bases, self.locks):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise SandboxError(
                "sandbox.unavailable",
                f"The folder of local sandboxes {self.state_dir} cannot be made: {error.strerror}.",
                hint="Give the worker a state folder that it may write.",
            ) from error

    def claim(self, record: Record) -> Path:
        """Make the folder of a new sandbox, its record in it from the first moment."""
        draft = self.sandboxes / f".{record.id}"
        draft.mkdir(mode=0o755)
        (draft / "root").mkdir()
        _write_record(draft, record)
        folder = self.sandboxes / record.id
        draft.rename(folder)
        return folder

    def started(self, record: Record, pid: int) -> Record:
        """Note the first process of a sandbox."""
        record = replace(record, pid=pid, pid_started=start_time(pid) or 0)
        with contextlib.suppress(FileNotFoundError):  # removed from outside meanwhile
            _write_record(self.sandboxes / record.id, record)
        return record

    def records(self, labels: Mapping[str, str]) -> list[Record]:
        """Return the sandboxes of this host that carry all the labels."""
        found = []
        for name in sorted(os.listdir(self.sandboxes)) if self.sandboxes.exists() else ():
            record = self.read(name)
            if record is not None and labels.items() <= record.labels.items():
                found.append(record)
        return found

    def read(self, sandbox_id: str) -> Record | None:
        """Return the record of a sandbox; None = there is none."""
        if not _ID.fullmatch(sandbox_id):
            return None
        try:
            fields = json.loads((self.sandboxes / sandbox_id / _RECORD).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Record(**{**fields, "groups": tuple(fields["groups"])})

    def remove(self, sandbox_id: str) -> None:
        """Kill what a sandbox still runs and remove all it holds; one that is gone is fine.

        Raises:
            SandboxError: `sandbox.exec_failed` when its first process cannot be killed.
        """
        record = self.read(sandbox_id)
        if record is None:
            return
        if record.pid is not None:
            _end(record.pid, record.pid_started)
        remove_groups(tuple(Path(folder) for folder in record.groups))
        discard(self.sandboxes / sandbox_id)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None = it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def discard(folder: Path) -> None:
    """Delete a folder, whatever modes and depths its former owner left in it.

    It is moved out of sight first, so that a sandbox half deleted is never listed.
    """
    hidden = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(hidden)
    except FileNotFoundError:
        return
    for work in hidden.glob("work/*/work"):
        work.chmod(stat.S_IRWXU)  # overlayfs makes it a folder that only root may enter
    try:
        shutil.rmtree(hidden)
    except PermissionError:
        _unlock(hidden)
        _delete_by_program(hidden)
    except (OSError, RecursionError):
        _delete_by_program(hidden)


def _unlock(folder: Path) -> None:
    """Make every folder of a tree ours to delete; needed where we are not root."""
    left = [folder]
    while left:
        place = left.pop()
        place.chmod(stat.S_IRWXU)
        with os.scandir(place) as items:
            left.extend(Path(item.path) for item in items if item.is_dir(follow_symlinks=False))


def _delete_by_program(folder: Path) -> None:
    """Delete with rm(1), which manages trees deeper than Python's stack and the longest path."""
    done = subprocess.run(["rm", "-rf", "--", str(folder)], capture_output=True, check=False, timeout=600)
    if done.returncode != 0:
        logger.warning("leftover %s: %s", folder, done.stderr.decode(errors="replace")[-500:])


def _end(pid: int, started: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) != started:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not wait_for_end(pidfd, _DEATH_DEADLINE_S):
            raise SandboxError(
                "sandbox.exec_failed",
                f"Process {pid} of a local sandbox is still there {_DEATH_DEADLINE_S:.0f} s after SIGKILL.",
                hint="Something in it waits in the kernel, e.g. for a dead network disk; see `ps -o stat,wchan`.",
            )
    finally:
        os.close(pidfd)


def wait_for_end(pidfd: int, timeout_s: float) -> bool:
    """Wait until a process has ended; False = the time ran out."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0, int(timeout_s * 1000))))


def _write_record(folder: Path, record: Record) -> None:
    draft = folder / f"{_RECORD}.{time.monotonic_ns()}"
    draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
    draft.replace(folder / _RECORD)
