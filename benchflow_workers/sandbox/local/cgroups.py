"""Limits of a sandbox by control groups, version 1 and 2, as far as this host lets us write them."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchflow_workers.sandbox.base import SandboxSpec

logger = logging.getLogger(__name__)

CONTROLLERS = ("memory", "pids", "cpu")
"""What is limited."""

_PERIOD_US = 100_000
_PREFIX = "benchflow-"
_REMOVE_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use; None = no limit."""

    memory_bytes: int | None
    pids: int
    cpus: float | None

    @classmethod
    def of(cls, spec: SandboxSpec) -> Limits:
        """Return the limits a spec asks for."""
        memory = None if spec.memory_mb is None else spec.memory_mb << 20
        return cls(memory, spec.pids, spec.cpus)


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The control groups of one sandbox: one folder for each hierarchy, with what it limits."""

    folders: tuple[Path, ...]
    limited: frozenset[str]
    oom_file: Path | None

    @property
    def procs(self) -> tuple[Path, ...]:
        """Files that take the pid of a process to be limited."""
        return tuple(folder / "cgroup.procs" for folder in self.folders)

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for memory so far."""
        if self.oom_file is None:
            return 0
        try:
            lines = self.oom_file.read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def make_group(root: Path, sandbox_id: str, limits: Limits, *, membership: str | None = None) -> ControlGroup:
    """Make the groups of a sandbox in every hierarchy that can be written.

    Args:
        root: Where control groups are mounted.
        sandbox_id: Name of the groups.
        limits: What they allow.
        membership: Text of this process's /proc/self/cgroup; None = read it.

    Returns:
        A group that limits nothing where nothing can be written: the caller
        falls back to resource limits for what is not in `limited`.
    """
    if membership is None:
        membership = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    folders: list[Path] = []
    limited: set[str] = set()
    oom_file: Path | None = None
    for parent, controllers, version in _hierarchies(root, membership):
        folder = parent / f"{_PREFIX}{sandbox_id}"
        done = _write_limits(folder, limits, controllers, version)
        if done:
            folders.append(folder)
            limited |= done
        if "memory" in done:
            oom_file = folder / ("memory.oom_control" if version == 1 else "memory.events")
    return ControlGroup(tuple(folders), frozenset(limited), oom_file)


def remove_groups(folders: tuple[Path, ...]) -> None:
    """Remove groups whose processes have ended; those that are gone are fine."""
    deadline = time.monotonic() + _REMOVE_DEADLINE_S
    for folder in folders:
        while True:
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    logger.warning("control group %s could not be removed: %s", folder, error)
                    break
                time.sleep(0.002)
            else:
                break


def _hierarchies(root: Path, membership: str) -> Iterator[tuple[Path, tuple[str, ...], int]]:
    """Yield (parent folder, controllers, version) of each place to make a group in.

    Below the group of this process where it is visible, so that its own limits go on holding.
    """
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    for controller in CONTROLLERS:
        mount = root / controller
        if (mount / "cgroup.procs").exists():
            yield _visible(mount, own.get(controller, "/")), (controller,), 1
    if (root / "cgroup.controllers").exists():
        parent = _delegated(root, own.get("", "/"))
        if parent is not None:
            available = (parent / "cgroup.controllers").read_text(encoding="ascii").split()
            yield parent, tuple(name for name in CONTROLLERS if name in available), 2


def _visible(mount: Path, path: str) -> Path:
    own = mount / path.lstrip("/")
    return own if own.is_dir() else mount


def _delegated(root: Path, path: str) -> Path | None:
    """Return a version 2 group whose controllers may be given to children; one with processes may not."""
    for candidate in (_visible(root, path), root):
        if _enable(candidate):
            return candidate
    return None


def _enable(folder: Path) -> bool:
    try:
        names = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
        wanted = " ".join(f"+{name}" for name in CONTROLLERS if name in names)
        (folder / "cgroup.subtree_control").write_text(wanted, encoding="ascii")
    except OSError as error:
        logger.debug("control group %s cannot be divided: %s", folder, error)
        return False
    return bool(wanted)


def _write_limits(folder: Path, limits: Limits, controllers: tuple[str, ...], version: int) -> set[str]:
    """Make one group and return the controllers that hold; none = it was not made."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        logger.debug("control group %s cannot be made: %s", folder, error)
        return set()
    done = set()
    for controller in controllers:
        if _write_all(folder, _values(controller, limits, version)):
            done.add(controller)
    if not done:
        remove_groups((folder,))
    return done


def _values(controller: str, limits: Limits, version: int) -> Mapping[str, str]:
    """Return file -> value for one controller; a name that ends with "?" may be missing on this kernel."""
    if controller == "pids":
        return {"pids.max": str(limits.pids)}
    if controller == "cpu" and limits.cpus is not None:
        quota = max(1000, round(limits.cpus * _PERIOD_US))
        if version == 2:
            return {"cpu.max": f"{quota} {_PERIOD_US}"}
        return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)}
    if controller == "memory" and limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        if version == 2:
            return {"memory.max": size, "memory.swap.max?": "0"}
        return {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes?": size}
    return {}


def _write_all(folder: Path, values: Mapping[str, str]) -> bool:
    for name, value in values.items():
        path = folder / name.removesuffix("?")
        if name.endswith("?") and not path.exists():
            continue
        try:
            path.write_text(value, encoding="ascii")
        except OSError as error:
            logger.debug("limit %s = %s refused: %s", path, value, error)
            return False
    return True
