"""Who a command runs as: names and groups read from the sandbox's own files.

`pwd` and `grp` are not used: they load name service modules, and a sandbox could
place its own where the holder would load them with all its rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class User:
    """Numeric identity of a command."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def find(name: str, etc: Path) -> User | None:
    """Find a user by name or number in `passwd` and `group` of a folder.

    A number nobody has is a user without a name, whose group has the same
    number, not that of root. None = no user of that name.
    """
    entries = [fields for fields in _lines(etc / "passwd") if len(fields) >= 6]
    column = 2 if name.isdecimal() else 0
    for fields in entries:
        if fields[column] == name and fields[2].isdecimal() and fields[3].isdecimal():
            uid, gid = int(fields[2]), int(fields[3])
            return User(uid, gid, _groups(fields[0], gid, etc), fields[5] or "/")
    if name.isdecimal():
        return User(int(name), int(name), (int(name),), "/")
    return User(0, 0, (0,), "/root") if name == "root" else None


def _groups(name: str, gid: int, etc: Path) -> tuple[int, ...]:
    found = {gid}
    for fields in _lines(etc / "group"):
        if len(fields) >= 4 and fields[2].isdecimal() and name in fields[3].split(","):
            found.add(int(fields[2]))
    return tuple(sorted(found))


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return [line.split(":") for line in text.splitlines()]
