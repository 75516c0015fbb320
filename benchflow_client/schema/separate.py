"""What is known of tests that run in a sandbox of their own: which paths may enter it, and its record."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from benchflow_client.schema.base import Document

__all__ = ["CarriedPath", "SeparateRecord", "SeparateStatus", "check_carried"]

SeparateStatus = Literal[
    "complete", "verifier_failed", "transfer_failed", "sandbox_failed", "refused", "interrupted"
]
"""How far it came; refused = the agent's work is larger than what may be moved."""

_NEVER = (
    *("/dev", "/proc", "/run", "/sys"),
    *("/logs", "/tests", "/verifier", "/solution", "/oracle", "/testbed_verify", "/opt/benchflow"),
)
"""Folders of the kernel, and those that stand for the verdict."""

_SYSTEM = frozenset({
    *("/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt"),
    *("/root", "/sbin", "/srv", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin"),
    *("/usr/local/lib", "/usr/sbin", "/usr/share", "/var", "/var/lib", "/var/tmp"),
})  # fmt: skip
"""Folders the tests' own programs live in: carried whole, the sandbox would be the agent's again."""


def check_carried(path: str) -> str:
    """Return a path a sandbox of the tests may be given too, in its shortest form.

    Raises:
        ValueError: It is not absolute, or a system folder.
    """
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise ValueError(f"{path!r} is no absolute path without '..'")
    short = "/" + posixpath.normpath(path).lstrip("/")
    if short in _SYSTEM or any(PurePosixPath(short).is_relative_to(root) for root in _NEVER):
        raise ValueError(f"{path!r} is a system folder; name what is needed of it")
    return short


class CarriedPath(Document):
    """One file or folder that was moved."""

    path: str = Field(description="Where it stood, and stands in the tests' sandbox.")
    kind: Literal["workspace", "artifact", "include"] = Field(description="Why it was moved.")
    status: Literal["ok", "missing"] = Field(description="Missing = the agent left nothing there, or a link.")
    files: int = Field(default=0, ge=0, description="Regular files, each compared by its SHA-256 on arrival.")
    entries: int = Field(default=0, ge=0, description="Files, folders and links.")
    size_bytes: int = Field(default=0, ge=0, description="Bytes of the files together.")
    sha256: str | None = Field(
        default=None, description="Digest over the paths and digests of its files; None = missing."
    )
    is_overlay: bool = Field(
        default=False, description="What the fresh sandbox had there besides was left in place."
    )


class SeparateRecord(Document):
    """verifier-sandbox.json: what became of the tests' own sandbox."""

    image_source: str = Field(description="Key or file its image comes from.")
    sandbox_id: str | None = Field(default=None, description="The provider's id; None = never started.")
    status: SeparateStatus = Field(description="How far it came.")
    reason: str = Field(default="", description="Why it came no farther; empty = it is complete.")
    transfer: tuple[CarriedPath, ...] = Field(default=(), description="What was moved into it.")
    outside_workspace_writes: tuple[str, ...] | None = Field(
        default=None,
        description="Files changed elsewhere during the agent's turn, which were not moved; None = not known.",
    )
    outside_workspace_count: int | None = Field(
        default=None, description="How many there were, listed or not; None = not known."
    )
    pristine: bool = Field(description="Whether nothing but workspace and artifacts was moved into it.")
    sandbox_seconds: float = Field(default=0.0, description="From its start to its end (s).")
