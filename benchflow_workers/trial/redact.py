"""Keep secrets out of everything a trial writes: known values by value, others by their shape."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from benchflow_workers.trial.secret_shapes import LOOKBEHIND_BYTES, SHAPE_BYTES, Secrets

__all__ = ["KEPT_BYTES", "Redactor"]

KEPT_BYTES = 64 << 20
"""Bytes kept of one collected log, half from its start, half from its end: more is read by nobody."""

_WHOLE = "artifacts"  # what a task asked to keep is never cut: half an archive is worth nothing
_MASK = b"[redacted]"
_CHUNK = 4 << 20

_Source = IO[bytes]
_Pieces = Iterator[bytes]  # named here: inside the class `bytes` is a method


class Redactor:
    """Replaces secrets in text, bytes, JSON values and files.

    Args:
        values: Secret values known to this worker; each is found as it is and JSON-escaped.
        chunk_bytes: Larger files are masked in pieces of this size.
        kept_bytes: Larger files lose their middle, those below `artifacts/` excepted.
    """

    def __init__(
        self, values: Iterable[str] = (), *, chunk_bytes: int = _CHUNK, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._kept_bytes = kept_bytes
        literal = {form for value in values if value for form in _forms(value)}
        longest_first = sorted(literal, key=len, reverse=True)
        self._overlap = max([SHAPE_BYTES, *(2 * len(value) for value in longest_first)])
        self._secrets = Secrets(longest_first)

    def bytes(self, data: bytes) -> bytes:
        """Return the bytes with every secret masked."""
        return _piece(self._secrets, data, start=0, border=len(data))[0]

    def text(self, text: str) -> str:
        """Return the text with every secret masked."""
        return self.bytes(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")

    def value(self, value: Any) -> Any:
        """Return a JSON value with every string in it masked, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def tree(self, folder: Path) -> None:
        """Mask every regular file below a folder in place; files without a secret are not rewritten.

        Of a large file the middle is left out, with a line in its place that says so.
        """
        for path in _files_below(folder):
            size = path.lstat().st_size
            is_whole = path.relative_to(folder).parts[0] == _WHOLE
            if size > self._kept_bytes and not is_whole:
                self._rewrite(path, partial(self._shortened, size=size))
            elif size > self._chunk_bytes:
                self._rewrite(path, self._masked)
            else:
                self._small_file(path)

    def _small_file(self, path: Path) -> None:
        data = path.read_bytes()
        masked = self.bytes(data)
        if masked != data:
            path.write_bytes(masked)

    def _rewrite(self, path: Path, masked: Callable[[_Source], _Pieces]) -> None:
        """Replace a file by what is made of it, in bounded memory."""
        with path.open("rb") as source, tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as target:
            masked_path = Path(target.name)
            target.writelines(masked(source))
        masked_path.chmod(path.stat().st_mode & 0o777)
        masked_path.replace(path)

    def _masked(self, source: _Source) -> _Pieces:
        return _masked(self._secrets, self._overlap, _chunks(source, self._chunk_bytes))

    def _shortened(self, source: _Source, *, size: int) -> _Pieces:
        """Yield a masked head, a line about what is left out, and a masked tail.

        Both sides are read beyond their borders, so that half of a secret is on neither.
        """
        head, tail = self._kept_bytes // 2, size - self._kept_bytes // 2
        around = min(self._overlap, size - head)
        chunks = _chunks(source, self._chunk_bytes, limit_bytes=head + around)
        yield from _masked(self._secrets, self._overlap, chunks, unsure=around)
        yield b"\n[%d of %d bytes left out here]\n" % (tail - head, size)
        first = max(0, tail - self._overlap)
        source.seek(first)
        data = source.read(tail - first + self._overlap)
        cut = _behind_secret(self._secrets, data, tail - first)
        before = data[max(0, cut - LOOKBEHIND_BYTES) : cut]
        source.seek(first + cut)
        yield from _masked(self._secrets, self._overlap, _chunks(source, self._chunk_bytes), before=before)


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield every regular file below a folder, whatever its depth; links are not followed."""
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                entries = list(found)
        except FileNotFoundError:
            continue
        folders += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from (Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False))


def _chunks(source: IO[bytes], chunk_bytes: int, *, limit_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the rest of a file in pieces, or so many bytes of it."""
    left = limit_bytes
    while chunk := source.read(chunk_bytes if left is None else min(chunk_bytes, left)):
        yield chunk
        left = None if left is None else left - len(chunk)


def _masked_match(match: re.Match[bytes]) -> bytes:
    """Return what stands in a secret's place: the mask, behind the name the secret goes by if it has one."""
    return (match["kept"] or match["named"] or b"") + _MASK


def _forms(value: str) -> Iterator[bytes]:
    """Yield the bytes a value may be written as: by a program, in a document, in JSON."""
    written = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    for text in written:
        yield text.encode("utf-8", "surrogatepass")
        with contextlib.suppress(UnicodeEncodeError):
            yield text.encode("utf-8", "surrogateescape")


def _masked(
    secrets: Secrets, overlap: int, chunks: Iterable[bytes], *, before: bytes = b"", unsure: int = 0
) -> Iterator[bytes]:
    """Yield masked pieces; what lies on a border is held back until its other side is known.

    Args:
        secrets: What to mask.
        overlap: Bytes held back.
        chunks: What to read.
        before: What stands before the first chunk; seen, not yielded.
        unsure: Bytes at the end that are seen and not yielded; at most `overlap`.
    """
    held, done = before, len(before)
    for chunk in chunks:
        held = held[max(0, done - LOOKBEHIND_BYTES) :] + chunk
        done = min(done, LOOKBEHIND_BYTES)
        piece, done = _piece(secrets, held, start=done, border=len(held) - overlap)
        yield piece
    yield _piece(secrets, held, start=done, border=len(held) - unsure)[0]


def _piece(secrets: Secrets, data: bytes, *, start: int, border: int) -> tuple[bytes, int]:
    """Return the masked bytes up to the border, or up to a secret across it, and where that was."""
    parts = []
    for match in secrets.find(data, start):
        if match.end() > border:
            border = min(border, match.start())
            break
        parts += [data[start : match.start()], _masked_match(match)]
        start = match.end()
    border = max(start, border)
    return b"".join([*parts, data[start:border]]), border


def _behind_secret(secrets: Secrets, data: bytes, place: int) -> int:
    """Return a place, or the end of the secret it lies in."""
    for match in secrets.find(data):
        if match.start() < place < match.end():
            return match.end()
    return place
