"""A container's processes seen from the host, where the engine runs on the same machine.

Reading and killing from outside costs no exec, needs no shell in the image, works
when the container may not fork any more, and cannot be tricked by what runs inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_FOLDERS = ("docker/{id}", "system.slice/docker-{id}.scope")  # the engine's cgroupfs and systemd drivers
_OOM_FILES = ("memory.oom_control", "memory.events")  # v1, v2
_FREEZE = (("freezer.state", "FROZEN", "THAWED"), ("cgroup.freeze", "1", "0"))  # v1, v2
_IDENTITY = ["0", "0", "4294967295"]
_KILL_DEADLINE_S = 30.0
_PASSWD_BYTES = 1 << 20
_PATIENCE_S = 0.05  # a killed process is gone within milliseconds


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a container, by its number on the host."""

    pid: int
    parent: int
    session: int
    started: int  # clock ticks since boot
    uids: frozenset[int]  # real, effective, saved and filesystem
    tag: str  # value of the tag variable in its environment


class ContainerCgroup:
    """The control group of one container on this host."""

    def __init__(self, folder: Path, freezer: Path, tag_variable: str) -> None:
        self._folder = folder
        self._freezer = freezer
        self._needle = f"{tag_variable}=".encode()

    @classmethod
    def find(cls, container_id: str, tag_variable: str, *, mount: Path = _MOUNT) -> ContainerCgroup | None:
        """Return the control group of a container, None when it is not on this host."""
        for template in _FOLDERS:
            name = template.format(id=container_id)
            for folder, freezer in (
                (mount / "memory" / name, mount / "freezer" / name),
                (mount / name,) * 2,
            ):  # v1, v2
                if folder.is_dir():
                    return cls(folder, freezer, tag_variable)
        return None

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel killed for memory so far, None when that cannot be read."""
        for name in _OOM_FILES:
            with contextlib.suppress(OSError):
                return parse_oom_kills((self._folder / name).read_text())
        return None

    def can_kill(self) -> bool:
        """Return whether this process sees the container's processes under the ids they have inside."""
        pids = list(self._pids())
        if os.geteuid() != 0 or not pids or 0 in pids:
            return False
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pids[0]}/uid_map").read_text().split() == _IDENTITY
        return False

    def processes(self) -> list[Process]:
        """Return the live processes, those already dead but not yet waited for left out."""
        found = (self._read(pid) for pid in self._pids())
        return [process for process in found if process is not None]

    def init_pid(self) -> int:
        """Return the host's number of the container's first process; 0 when it is gone."""
        init, _ = keepers(self.processes())
        return 0 if init is None else init.pid

    async def kill(self, choose: Callable[[list[Process]], Iterable[Process]]) -> bool:
        """Kill the chosen processes until none is chosen any more.

        Returns:
            False when some were still there after half a minute: thousands take a loaded host seconds.
        """
        deadline = time.monotonic() + _KILL_DEADLINE_S
        delay_s = 0.002
        while victims := list(choose(self.processes())):
            if time.monotonic() > deadline:
                return False
            if delay_s > _PATIENCE_S:  # what is still there forks faster than it is killed one by one
                self._kill_frozen(choose)
            else:
                for victim in victims:
                    self._kill(victim)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, 0.2)
        return True

    def _kill_frozen(self, choose: Callable[[list[Process]], Iterable[Process]]) -> None:
        """Kill while nothing in the container runs; signals to frozen processes wait for the thaw at most."""
        state = next(
            ((self._freezer / name, on, off) for name, on, off in _FREEZE if (self._freezer / name).exists()),
            None,
        )
        if state is None:
            return
        path, on, off = state
        path.write_text(on)
        try:
            for victim in choose(self.processes()):
                self._kill(victim)
        finally:
            path.write_text(off)

    def _pids(self) -> Iterator[int]:
        with contextlib.suppress(OSError):  # the container is gone
            for path in self._folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    yield from map(int, path.read_text().split())

    def _read(self, pid: int) -> Process | None:
        try:
            # The name in parentheses may hold anything; the fields after it are fixed (proc_pid_stat(5)).
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            return None
        if fields[0] in {"Z", "X"}:
            return None
        rows = dict(line.partition(":")[::2] for line in status.splitlines())
        return Process(
            pid=pid,
            parent=int(fields[1]),
            session=int(fields[3]),
            started=int(fields[19]),
            uids=frozenset(map(int, rows["Uid"].split())),
            tag=self._tag(pid),
        )

    def _tag(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if item.startswith(self._needle):
                    return item.removeprefix(self._needle).decode(errors="replace")
        return ""

    def _kill(self, victim: Process) -> None:
        """Kill a process unless its number meanwhile belongs to another one."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(victim.pid)
            try:
                current = self._read(victim.pid)
                if current is not None and current.started == victim.started:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def tagged(processes: list[Process], tag: str) -> list[Process]:
    """Return the processes of one command: those with its tag, their sessions and all their descendants.

    Only a process that emptied its environment, opened a session of its own and
    lost its parent is not recognized.
    """
    members = {process.pid for process in processes if process.tag == tag}
    sessions = {process.session for process in processes if process.pid in members}
    grew = True
    while grew:
        related = {p.pid for p in processes if p.parent in members or p.session in sessions}
        grew = not related <= members
        members |= related
    return [process for process in processes if process.pid in members]


def owned(processes: list[Process], uid: int) -> list[Process]:
    """Return the processes of a user but the two that keep the container alive."""
    kept = keepers(processes)
    return [process for process in processes if uid in process.uids and process not in kept]


def keepers(processes: list[Process]) -> tuple[Process | None, Process | None]:
    """Return the container's init and its main program: the oldest process and its oldest child.

    Age cannot be forged by what runs inside, unlike names and arguments.
    """
    by_age = sorted(processes, key=lambda process: (process.started, process.pid))
    inside = {process.pid for process in processes}
    init = next((process for process in by_age if process.parent not in inside), None)
    main = next((process for process in by_age if init is not None and process.parent == init.pid), None)
    return init, main


def parse_oom_kills(text: str) -> int | None:
    """Return the number of the row `oom_kill`, as cgroup v1 (kernel >= 4.13) and v2 write it."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def read_passwd(root_pid: int, name: str) -> int | None:
    """Return the uid of a user of a container by its /etc/passwd, None when that file is not plain.

    Links are not followed: inside the container they could point at files of this host.
    """
    with contextlib.ExitStack() as open_handles, contextlib.suppress(OSError):
        handle = os.open(f"/proc/{root_pid}/root", os.O_PATH | os.O_DIRECTORY)
        open_handles.callback(os.close, handle)
        folder = os.open("etc", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
        open_handles.callback(os.close, folder)
        file = os.open("passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        open_handles.callback(os.close, file)
        text = os.read(file, _PASSWD_BYTES).decode(errors="replace")
        return parse_passwd(text, name)
    return None


def parse_passwd(text: str, name: str) -> int | None:
    """Return the uid of a user in the text of an /etc/passwd, None when it is not there."""
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[0] == name and fields[2].isdigit():
            return int(fields[2])
    return None
