"""What of the host a sandbox sees: which folders, from which file systems, with what hidden.

A root is a list of slots. A slot is one overlay: a place in the sandbox and the
read-only folders below it, topmost first. A folder of the host is taken apart
into smaller slots where something stands in the way of one overlay: another disk
below it, the state folder itself (the kernel refuses layers that lie inside one
another), and inside a user namespace any mount at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_FOLDERS = frozenset({
    "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "var", "opt", "nix", "gnu",
})  # fmt: skip
"""Folders of the host's root that a sandbox shows; all others are not there at all."""

EMPTY_FOLDERS: Mapping[str, int] = {
    "root": 0o700, "home": 0o755, "srv": 0o755, "mnt": 0o755, "media": 0o755, "run": 0o755, "tmp": 0o1777,
    "dev": 0o755, "proc": 0o555, "sys": 0o555,
}  # fmt: skip
"""Folders every root has, shown empty, with their modes."""

HIDDEN = (
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/spool/cron",
    "/var/run/docker.sock",
    "/etc/kubernetes",
)
"""Places inside system folders that are shown empty or not at all: other sandboxes, keys of the host."""

_SHARED_TMP = "/var/tmp"
_DISK_TYPES = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "squashfs", "erofs",
})  # fmt: skip
_OWNED_DEPTH = 4  # folders of the host that a single user may write into, counted from the root of a slot
_COPIED_BYTES = 1 << 20  # largest file of a skeleton or of /etc that is copied


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount point of the host and its file system type."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Slot:
    """One overlay of a root.

    Attributes:
        target: Place in the sandbox.
        key: Name of the slot's folder in uppers and layers.
        lowers: Read-only folders, topmost first.
    """

    target: str
    key: str
    lowers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """A read-only root that sandboxes put their own layers on.

    Attributes:
        identity: Changes when what is in it may have changed.
        slots: Its overlays, parents first.
    """

    identity: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class Survey:
    """What is asked of a root.

    Attributes:
        base: Folder that becomes `/`; `/` itself is the host.
        state_dir: Where layers are kept, links followed.
        hidden: Absolute paths, as seen inside, that are shown empty.
        is_single_user: Made inside a user namespace that knows one user.
        mounts: Mount points of this host.
    """

    base: Path
    state_dir: str
    hidden: tuple[str, ...]
    is_single_user: bool
    mounts: tuple[Mount, ...] = field(default_factory=lambda: tuple(read_mounts()))

    @property
    def is_host(self) -> bool:
        """Whether it shows the host's own root."""
        return self.base == Path("/")

    def obstacles_below(self, path: str) -> list[str]:
        """Return what lies strictly below a folder of the host and keeps one overlay from showing it."""
        prefix = path.rstrip("/") + "/"
        mounts = [mount.path for mount in self.mounts if self.is_single_user or self._shows(mount)]
        return [place for place in (*mounts, self.state_dir) if place.startswith(prefix)]

    def _shows(self, mount: Mount) -> bool:
        is_hidden = any(mount.path == path or mount.path.startswith(f"{path}/") for path in self.hidden)
        return mount.kind in _DISK_TYPES and not is_hidden and os.path.isdir(mount.path)


def read_mounts(table: Path = Path("/proc/self/mountinfo")) -> list[Mount]:
    """Return the mounts of this process."""
    mounts = []
    for line in table.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        path = left.split(" ")[4]
        for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            path = path.replace(code, char)
        mounts.append(Mount(path, right.split(" ")[0]))
    return mounts


def make_root(survey: Survey, cache: Path) -> Root:
    """Return the root of a survey, making the few folders it needs once under `cache`."""
    identity = _identity(survey)
    home = cache / identity
    if not home.exists():
        draft = cache / f".{identity}-{uuid.uuid4().hex[:8]}"
        slots = list(_Builder(survey, draft).slots())
        (draft / "slots.json").write_text(json.dumps(slots), encoding="utf-8")
        try:
            draft.rename(home)
        except OSError:  # another process was faster
            shutil.rmtree(draft, ignore_errors=True)
    slots = json.loads((home / "slots.json").read_text(encoding="utf-8"))
    return Root(
        identity,
        tuple(
            Slot(target, key, tuple(str(home / lower) for lower in lowers)) for target, key, lowers in slots
        ),
    )


def slot_key(target: str) -> str:
    """Return the folder name of a slot; different targets never share one."""
    return "root" if target == "/" else target.strip("/").replace("_", "__").replace("/", "_s")


def _identity(survey: Survey) -> str:
    """Digest what is cheap to read and changes when packages of the root change."""
    base = survey.base
    facts: list[object] = [str(base), survey.is_single_user, os.geteuid(), sorted(survey.hidden)]
    facts += survey.obstacles_below("/") if survey.is_host else []
    facts += sorted(os.listdir(base))
    for name in ("var/lib/dpkg/status", "lib/apk/db/installed", "var/lib/rpm", "etc/os-release", "usr/bin", "usr/lib", "usr/local", "etc", "opt", "var/lib"):  # fmt: skip
        try:
            state = (base / name).stat()
        except OSError:
            continue
        facts.append((name, state.st_ino, state.st_size, state.st_mtime_ns))
    return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogateescape")).hexdigest()[:24]


class _Builder:
    """Makes the folders of one root below a draft folder."""

    def __init__(self, survey: Survey, draft: Path) -> None:
        self._survey = survey
        self._draft = draft
        self._xattr = "user.overlay.opaque" if survey.is_single_user else "trusted.overlay.opaque"
        self._kinds = {mount.path: mount.kind for mount in survey.mounts}

    def slots(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield (target, key, lowers) with lowers relative to the draft, or absolute."""
        self._draft.mkdir(parents=True)
        if not self._survey.is_host:
            yield "/", "root", [str(self._survey.base)]
            return
        yield "/", "root", [self._top()]
        for name in sorted(SYSTEM_FOLDERS):
            if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
                yield from self._split(f"/{name}")

    def _top(self) -> str:
        """Make the root's own folder: links and mount points of system folders, the usual empty ones."""
        top = self._folder("skeleton", "/")
        for name, mode in EMPTY_FOLDERS.items():
            (top / name).mkdir()
            (top / name).chmod(mode)
        for name in sorted(SYSTEM_FOLDERS):
            if os.path.islink(f"/{name}"):
                (top / name).symlink_to(os.readlink(f"/{name}"))
            elif os.path.isdir(f"/{name}"):
                (top / name).mkdir()
        return self._relative(top)

    def _split(self, target: str) -> Iterator[tuple[str, str, list[str]]]:
        """Yield one slot for a folder without obstacles below it, else a skeleton and slots for its parts."""
        if target == _SHARED_TMP or target in self._survey.hidden:
            return  # stays the skeleton's empty folder
        if not self._survey.obstacles_below(target):
            if os.access(target, os.R_OK | os.X_OK):
                yield target, slot_key(target), [self._cover(target), target]
            return
        skeleton = self._folder("skeleton", target)
        self._liken(skeleton, target)
        folders = []
        for item in sorted(_listed(Path(target)), key=lambda item: item.name):
            path = f"{target}/{item.name}"
            if item.is_dir(follow_symlinks=False):
                (skeleton / item.name).mkdir()
                self._liken(skeleton / item.name, path)
                folders.append(path)
            elif path not in self._survey.hidden:
                _copy(item, skeleton / item.name)
        yield target, slot_key(target), [self._relative(skeleton)]
        for path in folders:
            if self._kinds.get(path, "ext4") in _DISK_TYPES:
                yield from self._split(path)

    def _cover(self, target: str) -> str:
        """Make the layer right above a folder of the host: it hides, and as one user it makes writable."""
        cover = self._folder("cover", target)
        self._liken(cover, target)
        if self._survey.is_single_user:
            self._own(cover, Path(target), target, _OWNED_DEPTH)
        else:
            self._hide_below(cover, target)
        return self._relative(cover)

    def _hide_below(self, cover: Path, target: str) -> None:
        for path in (*self._survey.hidden, _SHARED_TMP):
            if not path.startswith(f"{target}/") or not os.path.lexists(path):
                continue
            place = cover / path.removeprefix(f"{target}/")
            if not os.path.lexists(place) and self._make_parents(place.parent, cover, target):
                self._hide(place, path)

    def _make_parents(self, folder: Path, cover: Path, target: str) -> bool:
        """Make a folder of the cover like the host's; False where a link leads elsewhere."""
        if folder == cover:
            return True
        host = f"{target}/{folder.relative_to(cover)}"
        if not self._make_parents(folder.parent, cover, target) or os.path.islink(host):
            return False
        if not folder.exists():
            folder.mkdir()
            self._liken(folder, host)
        return True

    def _hide(self, place: Path, path: str) -> None:
        """Show an empty folder in the place of a folder, nothing in the place of anything else."""
        if os.path.isdir(path) and not os.path.islink(path):
            place.mkdir()
            place.chmod(0o1777 if path == _SHARED_TMP else 0o755)
            os.setxattr(place, self._xattr, b"y")
        else:
            os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))  # a whiteout

    def _liken(self, folder: Path, host: str) -> None:
        """Give a folder the mode and owner of the host's, since the topmost layer's are what shows."""
        state = os.stat(host)
        folder.chmod(stat.S_IMODE(state.st_mode) | (stat.S_IRWXU if self._survey.is_single_user else 0))
        if not self._survey.is_single_user:
            os.chown(folder, state.st_uid, state.st_gid)

    def _own(self, owned: Path, host: Path, target: str, depth: int) -> None:
        """Repeat the host's folders as folders of this user, so that files can be added and replaced."""
        for item in _listed(host):
            path = f"{target}/{item.name}"
            if path in self._survey.hidden or path == _SHARED_TMP:
                self._hide(owned / item.name, path)
            elif item.is_dir(follow_symlinks=False):
                if depth > 1 and os.access(item.path, os.R_OK | os.X_OK):
                    (owned / item.name).mkdir()
                    self._own(owned / item.name, Path(item.path), path, depth - 1)
            elif target == "/etc" or target.startswith("/etc/"):
                _copy(item, owned / item.name)

    def _folder(self, kind: str, target: str) -> Path:
        path = self._draft / kind / slot_key(target)
        path.mkdir(parents=True, mode=0o755)
        return path

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._draft))


def _listed(folder: Path) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except PermissionError:
        return []


def _copy(item: os.DirEntry[str], target: Path) -> None:
    """Copy a link or a small readable file; others stay as the host has them, or are left out."""
    if item.is_symlink():
        target.symlink_to(os.readlink(item.path))
        return
    try:
        state = item.stat()
        if item.is_file() and state.st_size <= _COPIED_BYTES:
            shutil.copyfile(item.path, target)
            if os.geteuid() == 0:
                os.chown(target, state.st_uid, state.st_gid)
            target.chmod(stat.S_IMODE(state.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
    except PermissionError:
        target.unlink(missing_ok=True)


def hidden_paths(extra: Iterable[Path]) -> tuple[str, ...]:
    """Return the absolute paths to hide, links in them followed as far as the host knows them."""
    return tuple(sorted({*HIDDEN, *(os.path.realpath(path) for path in extra)}))
