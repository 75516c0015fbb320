"""Folders of the worker's host in a container, or copies of them where the engine does not see these folders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchflow_workers.sandbox.base import SandboxSpec, Upload
from benchflow_workers.sandbox.docker_http import EngineError

__all__ = ["MountsElsewhereError", "check_mounts", "mount_bodies", "with_copies"]

_NOT_THERE = "bind source path does not exist"
"""The engine's words, versions 20 to 28: it runs on another host, or the worker in a container of its own."""


class MountsElsewhereError(Exception):
    """The engine does not see the worker's folders."""


def mount_bodies(spec: SandboxSpec) -> list[dict[str, Any]]:
    """Return the engine's description of the mounts."""
    return [
        {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": True}
        for mount in spec.mounts
    ]


def check_mounts(spec: SandboxSpec, error: EngineError) -> None:
    """Raise MountsElsewhereError where that is why a container was refused."""
    if spec.mounts and _NOT_THERE in error.message:
        raise MountsElsewhereError from error


def with_copies(spec: SandboxSpec) -> SandboxSpec:
    """Return a spec with copies in the place of mounts."""
    if not spec.mounts:
        return spec
    copies = (Upload(mount.target, source=mount.source) for mount in spec.mounts)
    return replace(spec, mounts=(), uploads=(*copies, *spec.uploads))
