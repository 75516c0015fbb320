"""Keep secrets out of everything a trial writes: known values by value, others by their shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SHAPES = (
    rb"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and others
    rb"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",  # GitHub
    rb"glpat-[A-Za-z0-9_-]{16,}",  # GitLab
    rb"xox[abprs]-[A-Za-z0-9-]{10,}",  # Slack
    rb"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}",  # AWS key ids
    rb"AIza[0-9A-Za-z_-]{30,}",  # Google
    rb"hf_[A-Za-z0-9]{20,}",  # Hugging Face
    rb"npm_[A-Za-z0-9]{30,}",  # npm
    rb"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # JSON web tokens
    rb"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,}",  # HTTP authorization
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]{0,8192}?-----END [A-Z ]*PRIVATE KEY-----",
    rb"(?<=://)[^/\s:@]{1,64}:[^/\s:@]{3,128}(?=@)",  # user:password@ in a URL
)
_MASK = b"[redacted]"
_CHUNK = 4 << 20
_OVERLAP = 16 << 10  # longer than any shape, so that nothing hides on a chunk's border


class Redactor:
    """Replaces secrets in text, bytes, JSON values and files.

    Args:
        values: Secret values known to this worker; each is found as it is and JSON-escaped.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        literal = {value.encode("utf-8", "surrogateescape") for value in values}
        longest_first = sorted(literal, key=len, reverse=True)
        self._pattern = re.compile(b"|".join([*map(re.escape, longest_first), *_SHAPES]))

    def bytes(self, data: bytes) -> bytes:
        """Return the bytes with every secret masked."""
        return self._pattern.sub(_MASK, data)

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
        if path.stat().st_size <= _CHUNK:
            data = path.read_bytes()
            masked = self.bytes(data)
            if masked != data:
                path.write_bytes(masked)
            return
        self._large_file(path)

    def _large_file(self, path: Path) -> None:
        """Mask a file in bounded memory; each chunk is held back until the next one is known."""
        masked_path = path.with_name(path.name + ".redacting")
        with path.open("rb") as source, masked_path.open("wb") as target:
            held = b""
            while chunk := source.read(_CHUNK):
                masked = self.bytes(held + chunk)
                target.write(masked[:-_OVERLAP])
                held = masked[-_OVERLAP:]
            target.write(held)
        masked_path.chmod(path.stat().st_mode & 0o777)
        masked_path.replace(path)
