"""The system calls Python has no function for: mounts, namespaces, capabilities.

Constants are those of the kernel's stable interface (linux/mount.h, sched.h,
prctl.h, capability.h).

Lines marked "no cover" run in processes no coverage tool can follow into; the contract tests run them.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
"""Flags of unshare(2)."""

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
"""Flags of mount(2)."""

CAPABILITIES = 64
"""Upper bound of capability numbers to try; the kernel answers EINVAL above its last."""

_PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = (
    15,
    24,
    38,
    47,
    4,
)
_CAPABILITY_VERSION_3 = 0x20080522
_MNT_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_char_p,
)


def unshare(flags: int) -> None:  # pragma: no cover
    """Leave the namespaces named by the flags for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter_network(namespace: int) -> None:  # pragma: no cover
    """Move the calling thread into the network namespace of a descriptor."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(NEWNET)), "enter network namespace")


def mount(
    source: str, target: str, kind: str | None, *, flags: int = 0, data: str = ""
) -> None:  # pragma: no cover
    """Mount; the error names the target and the options."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        flags,
        os.fsencode(data) if data else None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}" + (f" with {data[:600]}" if data else ""))


def bind(source: str, target: str, *, extra_flags: int = 0) -> None:  # pragma: no cover
    """Show a file or folder at a second place; extra flags (read-only) are put on that place only."""
    mount(source, target, None, flags=BIND)
    if extra_flags:
        mount("none", target, None, flags=BIND | REMOUNT | extra_flags)


def unmount(target: str) -> None:  # pragma: no cover
    """Detach a mount and all below it at once."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def pivot_to(root: str) -> None:  # pragma: no cover
    """Make a mount point the root of this mount namespace and drop the old root.

    Source: pivot_root(2), section "pivot_root(".", ".")".
    """
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def sync_file_system(path: str) -> None:
    """Write everything of the file system a path is on to its disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(fd), f"sync {path}")
    finally:
        os.close(fd)


def set_hostname(name: str) -> None:  # pragma: no cover
    """Set the host name of this UTS namespace."""
    data = name.encode()
    _check(_libc.sethostname(data, ctypes.c_size_t(len(data))), "sethostname")


def set_name(name: str) -> None:  # pragma: no cover
    """Set the short process name that `ps` and `pkill` see."""
    _check(_prctl(_PR_SET_NAME, name.encode()), "set name")


def forbid_new_privileges() -> None:  # pragma: no cover
    """Make set-id programs run without their extra rights, for this process and all it starts."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")


def limit_bounding_set(keep: frozenset[int]) -> None:  # pragma: no cover
    """Give up for ever all capabilities except some."""
    for number in range(CAPABILITIES):
        if number in keep:
            continue
        if _prctl(_PR_CAPBSET_DROP, number) != 0:
            break  # EINVAL: above the last capability of this kernel


def keep_capabilities(keep: Iterable[int]) -> None:  # pragma: no cover
    """Reduce this process to some capabilities, none of them inheritable or ambient."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    mask = _permitted() & sum(1 << number for number in keep)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)), "capset")


def _permitted() -> int:  # pragma: no cover
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "capget")
    values = struct.unpack("=6I", data.raw)
    return int(values[1] | values[4] << 32)


def _prctl(option: int, first: int | bytes) -> int:  # pragma: no cover
    value = ctypes.c_char_p(first) if isinstance(first, bytes) else ctypes.c_ulong(first)
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(ctypes.c_int(option), value, zero, zero, zero))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
