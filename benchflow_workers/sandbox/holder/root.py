"""Builds the root of a sandbox from overlays and makes it the only one its processes see.

Everything happens in a mount namespace of its own: nothing is mounted on the
host, and the last process that ends takes all mounts with it.

Lines marked "no cover" run in processes no coverage tool can follow into; the contract tests run them.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchflow_workers.sandbox.holder import kernel

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SAFE = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
_READ_ONLY_PROC = ("sys", "irq", "bus", "fs", "sysrq-trigger")
_HIDDEN_PROC = ("kcore", "keys", "timer_list", "sched_debug", "latency_stats")


def build(plan: Mapping[str, Any]) -> None:  # pragma: no cover
    """Mount the root described by a plan, enter it, and forget the host.

    Args:
        plan: `root` (empty folder), `overlays` (target, lowers, upper, work; parents
            first), `overlay_options`, `binds` (source, target), `files` (path, text),
            `folders`, `hostname`.
    """
    root = plan["root"]
    kernel.mount("none", "/", None, flags=kernel.REC | kernel.PRIVATE)
    for overlay in plan["overlays"]:
        _mount_overlay(root, overlay, plan["overlay_options"])
    _mount_dev(_folder(root, "dev"))
    _mount_proc(_folder(root, "proc"))
    kernel.mount("sys", _folder(root, "sys"), "tmpfs", flags=_SAFE | kernel.RDONLY, data="size=4k,mode=555")
    for source, target in plan["binds"]:
        kernel.bind(
            source, _folder(root, target.lstrip("/")), extra_flags=kernel.RDONLY | _kept_flags(source)
        )
    kernel.pivot_to(root)
    kernel.set_hostname(plan["hostname"])
    for path, text in plan["files"]:
        _write(path, text)
    for path in plan["folders"]:
        os.makedirs(path, exist_ok=True)
    forget_modules()


def forget_modules() -> None:  # pragma: no cover
    """Make any later import impossible: it would load code that a sandbox could have placed."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


def _mount_overlay(root: str, overlay: Mapping[str, Any], options: str) -> None:  # pragma: no cover
    target = root + (overlay["target"] if overlay["target"] != "/" else "")
    lowers = ":".join(_escaped(lower) for lower in overlay["lowers"])
    data = f"lowerdir={lowers},upperdir={_escaped(overlay['upper'])},workdir={_escaped(overlay['work'])}"
    kernel.mount("overlay", target, "overlay", flags=kernel.NODEV, data=f"{data},{options}")


def _escaped(path: str) -> str:  # pragma: no cover
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _folder(root: str, name: str) -> str:  # pragma: no cover
    """Return a folder below the root that no link leads out of, made when missing."""
    path = root
    for part in Path(name).parts:
        path = os.path.join(path, part)
        try:
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            os.mkdir(path, 0o755)
            continue
        if not is_folder:
            raise NotADirectoryError(20, f"/{name} of the sandbox's image is not a folder")
    return path


def _mount_dev(dev: str) -> None:  # pragma: no cover
    kernel.mount("dev", dev, "tmpfs", flags=kernel.NOSUID, data="mode=755,size=1m")
    for name in _DEVICES:
        _make_file(f"{dev}/{name}")
        kernel.bind(f"/dev/{name}", f"{dev}/{name}")
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"{dev}/{name}")
    options = "newinstance,ptmxmode=0666,mode=620"
    kernel.mount("devpts", f"{dev}/pts", "devpts", flags=kernel.NOSUID | kernel.NOEXEC, data=options)
    kernel.mount("shm", f"{dev}/shm", "tmpfs", flags=kernel.NOSUID | kernel.NODEV, data="mode=1777,size=64m")
    os.symlink("pts/ptmx", f"{dev}/ptmx")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{dev}/{name}")


def _mount_proc(proc: str) -> None:  # pragma: no cover
    """Mount /proc; what root could change or read of the kernel through it is closed."""
    kernel.mount("proc", proc, "proc", flags=_SAFE)
    for path in _existing(proc, _READ_ONLY_PROC):
        kernel.bind(path, path, extra_flags=kernel.RDONLY | _SAFE)
    for path in _existing(proc, _HIDDEN_PROC):
        kernel.bind("/dev/null", path)


def _existing(folder: str, names: Iterable[str]) -> list[str]:  # pragma: no cover
    return [path for name in names if os.path.exists(path := f"{folder}/{name}")]


def _kept_flags(source: str) -> int:  # pragma: no cover
    """Return the flags of the file system below a path; a user namespace may not drop them."""
    flags = os.statvfs(source).f_flag
    pairs = ((os.ST_NOSUID, kernel.NOSUID), (os.ST_NODEV, kernel.NODEV), (os.ST_NOEXEC, kernel.NOEXEC))
    return sum(flag for mask, flag in pairs if flags & mask)


def _make_file(path: str) -> None:  # pragma: no cover
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _write(path: str, text: str) -> None:  # pragma: no cover
    """Write a file of the sandbox, replacing what is there itself and not what it links to."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
