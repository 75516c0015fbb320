"""A program in a sandbox that is talked to while it runs, over its standard streams."""

from __future__ import annotations

from typing import Protocol

from benchflow_workers.sandbox.output import CappedOutput

STDERR_LIMIT_BYTES = 1 << 20
"""Bytes kept of what such a program writes to standard error, half from its start, half from its end."""

END_GRACE_S = 0.5
"""How long output is waited for after the end of a program whose children still hold its pipe."""


class Process(Protocol):
    """A running program; made by `Sandbox.attach`, whose block bounds its life.

    One task reads and any number of tasks write. All methods may raise `SandboxError`
    as the sandbox's do.
    """

    @property
    def stderr(self) -> CappedOutput:
        """What it wrote to standard error so far, as far as it was read while standard output was."""
        ...

    async def read(self) -> bytes:
        """Return the next bytes of standard output as they come; empty = there will be no more.

        Guarantees: what is not read is not taken from the program, so memory on the worker
        is bounded. A child that still holds the pipe after the program's end delays the
        empty answer by a few seconds at most. A cancelled call loses nothing.
        """
        ...

    async def write(self, data: bytes) -> bool:
        """Write to standard input; False = nobody reads it any more.

        Guarantees: parts of two calls are not mixed.
        """
        ...

    async def wait(self) -> int:
        """Wait for the program's end, for as long as it takes, and return its exit code, as of a command.

        What is left of its output is dropped.
        """
        ...
