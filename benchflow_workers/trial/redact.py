"""Keep secrets out of everything a trial writes: known values by value, others by their shape."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_SHAPES = (
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))sk-[A-Za-z0-9_-]{16,4096}",  # OpenAI, Anthropic; not `task-list-of-...`
    rb"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,512}|github_pat_[A-Za-z0-9_]{20,512}",  # GitHub
    rb"glpat-[A-Za-z0-9_-]{16,512}",  # GitLab
    rb"xox[abprs]-[A-Za-z0-9-]{10,512}",  # Slack
    rb"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}",  # AWS key ids
    rb"AIza[0-9A-Za-z_-]{30,512}",  # Google
    rb"hf_[A-Za-z0-9]{20,512}",  # Hugging Face
    rb"npm_[A-Za-z0-9]{30,512}",  # npm
    rb"dtn_[A-Za-z0-9]{20,512}",  # Daytona
    # JSON web tokens; possessive and short-headed, since `eyJeyJ...` is tried at every step
    rb"eyJ[A-Za-z0-9_-]{8,512}+\.[A-Za-z0-9_-]{8,8192}+\.[A-Za-z0-9_-]{8,4096}",
    rb"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,8192}",  # HTTP authorization
    # private keys; no `-----` inside, so that a file of first lines is read once
    rb"-----BEGIN [A-Z ]{0,64}PRIVATE KEY-----(?:[^-]|-(?!----)){0,8192}+-----END [A-Z ]{0,64}PRIVATE KEY-----",
    rb"(?<=://)[^/\s:@]{1,64}:[^/\s:@]{3,128}(?=@)",  # user:password@ in a URL
    # a header that holds a key, and variables called like one: with a digit, or it is a word of a program
    rb"(?P<kept>(?i:x-api-key)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?)[A-Za-z0-9._~+/=-]{16,512}+",
    rb"(?P<named>(?i:api_?key|_token|_secret|_password)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?)"
    rb"(?=[A-Za-z_~+/=-]{0,512}[0-9])[A-Za-z0-9_~+/=-]{16,512}+(?![.(\[])",
)
"""Every repetition has an end: what a sandbox printed must not decide how long a worker is busy."""

_MASK = b"[redacted]"
_CHUNK = 4 << 20
_OVERLAP = 16 << 10  # longer than any shape, so that nothing hides on a chunk's border
_LOOKBEHIND = 16  # bytes a shape may want to see before it begins


class Redactor:
    """Replaces secrets in text, bytes, JSON values and files.

    Args:
        values: Secret values known to this worker; each is found as it is and JSON-escaped.
        chunk_bytes: Larger files are masked in pieces of this size.
    """

    def __init__(self, values: Iterable[str] = (), *, chunk_bytes: int = _CHUNK) -> None:
        self._chunk_bytes = chunk_bytes
        literal = {form for value in values if value for form in _forms(value)}
        longest_first = sorted(literal, key=len, reverse=True)
        self._overlap = max([_OVERLAP, *(2 * len(value) for value in longest_first)])
        self._pattern = re.compile(b"|".join([*map(re.escape, longest_first), *_SHAPES]))

    def bytes(self, data: bytes) -> bytes:
        """Return the bytes with every secret masked."""
        return self._pattern.sub(_masked_match, data)

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
        """Mask every regular file below a folder in place; files without a secret are not rewritten."""
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                self._file(path)

    def _file(self, path: Path) -> None:
        if path.stat().st_size <= self._chunk_bytes:
            data = path.read_bytes()
            masked = self.bytes(data)
            if masked != data:
                path.write_bytes(masked)
            return
        self._large_file(path)

    def _large_file(self, path: Path) -> None:
        """Mask a file in bounded memory."""
        with path.open("rb") as source, tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as target:
            masked_path = Path(target.name)
            chunks = iter(lambda: source.read(self._chunk_bytes), b"")
            target.writelines(_masked(self._pattern, self._overlap, chunks))
        masked_path.chmod(path.stat().st_mode & 0o777)
        masked_path.replace(path)


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


def _masked(pattern: re.Pattern[bytes], overlap: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield masked pieces; what lies on a border is held back until its other side is known."""
    held, done = b"", 0
    for chunk in chunks:
        held = held[max(0, done - _LOOKBEHIND) :] + chunk
        done = min(done, _LOOKBEHIND)
        piece, done = _piece(pattern, held, start=done, border=len(held) - overlap)
        yield piece
    yield _piece(pattern, held, start=done, border=len(held))[0]


def _piece(pattern: re.Pattern[bytes], data: bytes, *, start: int, border: int) -> tuple[bytes, int]:
    """Return the masked bytes up to the border, or up to a secret across it, and where that was."""
    parts = []
    for match in pattern.finditer(data, start):
        if match.end() > border:
            border = min(border, match.start())
            break
        parts += [data[start : match.start()], _masked_match(match)]
        start = match.end()
    border = max(start, border)
    return b"".join([*parts, data[start:border]]), border
