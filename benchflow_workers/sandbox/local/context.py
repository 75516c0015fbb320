"""The files a Dockerfile may copy: which they are, where they go, what identifies them."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Upload

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """What one COPY places.

    Attributes:
        uploads: Files and folders with their final paths; owners not set yet.
        digest: Changes with any name, mode or content.
    """

    uploads: tuple[Upload, ...]
    digest: str


class BuildContext:
    """The folder of a Dockerfile without what `.dockerignore` names.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._rules = _read_rules(folder / ".dockerignore")

    def sources(self, patterns: Sequence[str], line: int) -> list[Path]:
        """Return the files and folders that COPY sources name.

        Raises:
            SandboxError: `sandbox.build_failed` when one names nothing, or leads out of the folder.
        """
        found: list[Path] = []
        for pattern in patterns:
            if re.match(r"(https?|git|ssh)://|git@", pattern):
                raise _refused(
                    line, f"{pattern!r} is an address", "Fetch it with RUN, or put the file beside."
                )
            name = posixpath.normpath("/" + pattern).lstrip("/")
            matches = sorted(self._folder.glob(name)) if name else [self._folder]
            matches = [path for path in matches if not self._is_ignored(path)]
            if not matches:
                raise _refused(line, f"{pattern!r} names nothing in the build context", "Check the path.")
            found += matches
        for path in found:
            if not path.resolve().is_relative_to(self._folder):
                raise _refused(
                    line,
                    f"{path.name!r} links out of the build context",
                    "Copy the file instead of linking it.",
                )
        return found

    def copy(self, sources: Sequence[Path], target: str, *, into_folder: bool) -> Copy:
        """Return what is placed: the content of folders, and files in or at the target."""
        uploads: list[Upload] = []
        for source in sources:
            if source.is_dir():
                uploads += self._content(source, target)
            else:
                place = posixpath.join(target, source.name) if into_folder else target
                uploads.append(Upload(place, source=source))
        return Copy(tuple(uploads), _digest(uploads))

    def _content(self, folder: Path, target: str) -> Iterator[Upload]:
        for path in sorted(folder.iterdir()):
            if self._is_ignored(path):
                continue
            place = posixpath.join(target, path.name)
            if path.is_dir() and not path.is_symlink():
                yield Upload(place, mode=stat.S_IMODE(path.stat().st_mode))
                yield from self._content(path, place)
            elif path.is_symlink():
                yield Upload(place, link_to=os.readlink(path))
            else:
                yield Upload(place, source=path)

    def _is_ignored(self, path: Path) -> bool:
        name = path.relative_to(self._folder).as_posix()
        is_ignored = False
        for pattern, is_exception in self._rules:
            if pattern.fullmatch(name):
                is_ignored = not is_exception
        return is_ignored


def _read_rules(path: Path) -> list[tuple[re.Pattern[str], bool]]:
    """Return (pattern of a path or of anything below it, is it an exception) in order."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    rules = []
    for line in (line.strip() for line in lines):
        if not line or line.startswith("#"):
            continue
        pattern = posixpath.normpath("/" + line.removeprefix("!").strip()).lstrip("/")
        rules.append((re.compile(f"{_regex(pattern)}(/.*)?"), line.startswith("!")))
    return rules


def _regex(pattern: str) -> str:
    """Translate a pattern: `*` stays within a name, `**` crosses folders."""
    parts = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern):
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece)
        if special is None:
            is_set = piece.startswith("[") and piece.endswith("]")
            special = fnmatch.translate(piece)[4:-3] if is_set else re.escape(piece)
        parts.append(special)
    return "".join(parts)


def _digest(uploads: Sequence[Upload]) -> str:
    total = hashlib.sha256()
    for upload in uploads:
        total.update(repr((upload.target, upload.link_to, upload.mode)).encode("utf-8", "surrogateescape"))
        if upload.source is not None:
            total.update(oct(upload.source.stat().st_mode).encode())
            with upload.source.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    total.update(chunk)
        total.update(b"\0")
    return total.hexdigest()


def _refused(line: int, reason: str, fix: str) -> SandboxError:
    return SandboxError("sandbox.build_failed", f"Dockerfile line {line}: {reason}.", hint=fix)
