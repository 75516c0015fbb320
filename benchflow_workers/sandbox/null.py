"""Sandboxes that run nothing: for measuring the queue and for tests of faults."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Capabilities, Command, Completed, SandboxRef, SandboxSpec, Upload
from benchflow_workers.sandbox.output import CappedOutput

__all__ = ["NullOptions", "NullSandbox", "NullSandboxes"]


@dataclass(frozen=True, slots=True)
class NullOptions:
    """Settings of `NullSandboxes`.

    Attributes:
        exec_s: Seconds that every command takes.
    """

    exec_s: float = 0.0


class NullProcess:
    """A program that ended well before it said anything."""

    def __init__(self) -> None:
        self.stderr = CappedOutput(0)

    async def read(self) -> bytes:
        """Return that there is no output."""
        return b""

    async def write(self, data: bytes) -> bool:
        """Return that nobody reads."""
        del data
        return False

    async def wait(self) -> int:
        """Return that it ended well."""
        return 0


class NullSandbox:
    """Says of every command that it succeeded, and keeps no file, so that no trial gets a verdict."""

    def __init__(self, provider: NullSandboxes, spec: SandboxSpec) -> None:
        self._provider = provider
        self._spec = spec

    @property
    def id(self) -> str:
        """Name from the spec."""
        return self._spec.name

    @property
    def workdir(self) -> str:
        """The spec's workspace, `/root` without one."""
        return self._spec.workdir or "/root"

    async def exec(self, command: Command) -> Completed:
        """Wait for `exec_s`, at most the command's deadline; success without output."""
        self._check_alive()
        wait_s = min(self._provider.options.exec_s, command.timeout_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
            self._check_alive()
        is_late = self._provider.options.exec_s > command.timeout_s
        return Completed(
            exit_code=137 if is_late else 0,
            stdout=b"",
            stderr=b"",
            stdout_bytes=0,
            stderr_bytes=0,
            timed_out=is_late,
            oom_killed=False,
            duration_s=wait_s,
        )

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[NullProcess, None]:
        """Yield a program that has ended."""
        del command
        self._check_alive()
        yield NullProcess()

    async def kill(self, user: str | int) -> None:
        """Do nothing: nothing runs."""
        del user
        self._check_alive()

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Do nothing: nothing is kept."""
        del uploads
        self._check_alive()

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Return False: no file exists."""
        del path, target, limit_bytes
        self._check_alive()
        return False

    async def close(self) -> None:
        """Forget the sandbox; safe to call twice."""
        self._provider.forget(self.id)

    def _check_alive(self) -> None:
        if not self._provider.knows(self):
            raise SandboxError(
                "sandbox.lost",
                f"The null sandbox {self.id} was closed or removed.",
                hint="Nothing to do: it never ran anything.",
            )


class NullSandboxes:
    """Makes sandboxes out of nothing; they live in this process only.

    Args:
        options: Settings.
    """

    def __init__(self, options: NullOptions | None = None) -> None:
        self.options = options or NullOptions()
        self._live: dict[str, tuple[NullSandbox, Mapping[str, str]]] = {}
        self._lock = threading.Lock()

    @property
    def kind(self) -> str:
        """Name used by `--sandbox` and by queues."""
        return "null"

    @property
    def capabilities(self) -> Capabilities:
        """Nothing is run, so nothing is reached, and every wish is granted."""
        return Capabilities(
            networks=frozenset({"public", "no-network"}),
            has_users=False,
            has_compose=False,
            has_gpus=False,
            isolates=("everything: it runs nothing",),
            does_not_isolate=(),
            runs_commands=False,
        )

    async def check(self) -> None:
        """Always fine: nothing is needed."""

    async def place(self) -> str:
        """Return this process: its null sandboxes end with it."""
        return f"process {os.getpid()}"

    async def open(self, spec: SandboxSpec) -> NullSandbox:
        """Return a sandbox at once; images and uploads are not looked at.

        Raises:
            SandboxError: `task.unsupported` for a network mode with a list of hosts.
        """
        if spec.network not in self.capabilities.networks:
            raise SandboxError(
                "task.unsupported",
                f"Null sandboxes do not know network_mode {spec.network!r}.",
                hint="Use --sandbox docker.",
            )
        sandbox = NullSandbox(self, spec)
        with self._lock:
            self._live[spec.name] = (sandbox, dict(spec.labels))
        return sandbox

    def knows(self, sandbox: NullSandbox) -> bool:
        """Return whether a sandbox is open."""
        return self._live.get(sandbox.id, (None,))[0] is sandbox

    def forget(self, sandbox_id: str) -> None:
        """Take a sandbox off the list; one that is not on it is fine."""
        with self._lock:
            self._live.pop(sandbox_id, None)

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the open sandboxes of this process that carry all the labels."""
        with self._lock:
            live = list(self._live.items())
        return [
            SandboxRef(self.kind, sandbox_id, held)
            for sandbox_id, (_, held) in live
            if labels.items() <= held.items()
        ]

    async def remove(self, ref: SandboxRef) -> None:
        """Forget a sandbox found by `list`."""
        self.forget(ref.id)

    async def close(self) -> None:
        """Do nothing: nothing is held."""
