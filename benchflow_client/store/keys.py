"""What a key may look like, and which key a file of a folder gets: pure text, no I/O.

Both stores refuse and accept the same keys, so that a job moves between them unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re

from benchflow_client.errors import StoreError

TEMP_PREFIX = ".benchflow-tmp-"
"""Start of the name of a file that is still being written; never a document."""

LONGEST_KEY_BYTES = 1024
"""Longest key of S3, the store's own prefix included."""

_LONGEST_PART_BYTES = 255
"""Longest name on the file systems of Linux, which MinIO asks for too."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, which S3 libraries refuse, and bytes that are not UTF-8."""


def check_key(key: str) -> str:
    """Return the key of a document when it is one.

    Raises:
        StoreError: It is empty, absolute, climbs with `..`, has an empty part, a control
            character or a byte that is not UTF-8, or names a file still being written.
    """
    reason = _problem(key)
    if reason:
        raise StoreError(
            f"{key!r} cannot be a key of a store: {reason}.",
            hint="Keys are relative paths with / such as 'calm-otter-7f3a/spec.json'.",
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return a folder-like prefix without its last slash; empty = the whole store.

    Raises:
        StoreError: It could not be the start of any key.
    """
    bare = prefix.removesuffix("/")
    return check_key(bare) if bare or prefix else ""


def join(prefix: str, relative: str) -> str:
    """Return the key of a path below a checked prefix."""
    return f"{prefix}/{relative}" if prefix else relative


def relative_to(prefix: str, key: str) -> str:
    """Return what of a key is below a checked prefix it starts with."""
    return key[len(prefix) + 1 :] if prefix else key


def is_safe(relative: str) -> bool:
    """Return whether a path that came from outside can be written below a folder."""
    return not _problem(relative)


def file_name_key(name: str) -> str:
    """Return a file name as a part of a key.

    What no key may hold (a control character, a byte that is not UTF-8) becomes ``\\xNN``,
    so that an odd file name of an agent loses no trial. One that gets too long by that is
    cut and ends with a digest of the name.
    """
    key = _UNSAFE.sub(_escaped, name)
    raw = os.fsencode(key)
    if len(raw) <= _LONGEST_PART_BYTES:
        return key
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return raw[: _LONGEST_PART_BYTES - 17].decode("utf-8", "ignore") + "~" + digest


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00 if code >= 0xDC80 else code:02x}"


def _problem(key: str) -> str:
    if not key:
        return "it is empty"
    if key.startswith("/"):
        return "it is absolute"
    if _UNSAFE.search(key):
        return "it has a control character or is not UTF-8"
    parts = key.split("/")
    if ".." in parts or "." in parts:
        return "it has a part '.' or '..'"
    if "" in parts:
        return "it has an empty part"
    if any(part.startswith(TEMP_PREFIX) for part in parts):
        return f"names with {TEMP_PREFIX!r} are files still being written"
    return ""
