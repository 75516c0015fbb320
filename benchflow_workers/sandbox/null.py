"""The `null` sandbox: runs nothing, so that the queue alone is measured and tested."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import (
    Capabilities,
    Command,
    Completed,
    SandboxRef,
    SandboxSpec,
    Upload,
)


@dataclass(frozen=True, slots=True)
class NullOptions:
    """How the sandbox pretends to be busy.

    Attributes:
        open_s: Seconds a sandbox takes to open.
    """

    open_s: float = 0.0


class NullSandbox:
    """Takes every command and runs none."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.workdir = "/"
        self._is_closed = False

    async def exec(self, command: Command) -> Completed:
        """Return success with no output."""
        del command
        self._check_open()
        return Completed(0, b"", b"", 0, 0, False, False, 0.0)

    async def kill(self, user: str | int) -> None:
        """Do nothing: no process runs."""
        del user
        self._check_open()

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Keep nothing."""
        del uploads
        self._check_open()

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Find nothing."""
        del path, target, limit_bytes
        self._check_open()
        return False

    async def close(self) -> None:
        """Refuse commands from now on."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError("sandbox.lost", f"The null sandbox {self.id} is closed.")


class NullSandboxes:
    """Makes sandboxes that run nothing; a trial in one ends without a verdict."""

    kind = "null"
    capabilities = Capabilities(
        networks=frozenset({"public", "no-network", "allowlist", "denylist"}),
        has_users=False,
        has_compose=False,
        has_gpus=False,
        isolates=(),
        does_not_isolate=(),
        runs_commands=False,
    )

    def __init__(self, options: NullOptions | None = None) -> None:
        self._options = options or NullOptions()

    async def check(self) -> None:
        """Work everywhere."""

    async def open(self, spec: SandboxSpec) -> NullSandbox:
        """Return a sandbox after the configured wait."""
        if self._options.open_s:
            await asyncio.sleep(self._options.open_s)
        return NullSandbox(spec.name)

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Find nothing: a null sandbox cannot be left behind."""
        del labels
        return ()

    async def remove(self, ref: SandboxRef) -> None:
        """Do nothing."""
        del ref

    async def close(self) -> None:
        """Hold nothing."""
