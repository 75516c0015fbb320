"""A provider that writes down each sandbox before it is made and erases it after it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchflow_client.ledger.sandboxes import SandboxBook, SandboxRecord
from benchflow_workers.sandbox.base import (
    Capabilities,
    Command,
    Completed,
    Sandbox,
    SandboxProvider,
    SandboxRef,
    SandboxSpec,
    Upload,
)
from benchflow_workers.sandbox.listener import Door, Target, open_door
from benchflow_workers.sandbox.network import NetworkPolicy, switch_network
from benchflow_workers.sandbox.network_log import take_refusals
from benchflow_workers.sandbox.process import Process
from benchflow_workers.sandbox.services import save_service_logs, services_of


class RecordedSandbox:
    """A sandbox whose record is erased when it is closed."""

    def __init__(self, inner: Sandbox, book: SandboxBook, name: str) -> None:
        self._inner = inner
        self._book = book
        self._name = name

    @property
    def id(self) -> str:
        """The provider's id."""
        return self._inner.id

    @property
    def workdir(self) -> str:
        """The workspace."""
        return self._inner.workdir

    async def exec(self, command: Command) -> Completed:
        """Run a command and wait for its end."""
        return await self._inner.exec(command)

    def attach(self, command: Command) -> AbstractAsyncContextManager[Process]:
        """Start a program and talk to it."""
        return self._inner.attach(command)

    async def kill(self, user: str | int) -> None:
        """Kill every process of a user."""
        await self._inner.kill(user)

    async def put(self, uploads: Sequence[Upload]) -> None:
        """Place files."""
        await self._inner.put(uploads)

    async def get(self, path: str, target: Path, *, limit_bytes: int = 1 << 30) -> bool:
        """Copy a file or folder out of the sandbox."""
        return await self._inner.get(path, target, limit_bytes=limit_bytes)

    async def open_door(self, port: int, target: Target) -> Door:
        """Listen inside the sandbox, where it can."""
        return await open_door(self._inner, port, target)

    def take_refusals(self) -> tuple[dict[str, Any], ...]:
        """Return what the sandbox was refused, where it knows."""
        return take_refusals(self._inner)

    async def set_network(self, policy: NetworkPolicy) -> str:
        """Change what the sandbox reaches, where it can."""
        return await switch_network(self._inner, policy)

    @property
    def services(self) -> Mapping[str, Sandbox]:
        """The services beside the sandbox, where it has any."""
        return services_of(self._inner)

    async def save_service_logs(self, folder: Path) -> None:
        """Write the logs of the services, where there are any."""
        await save_service_logs(self._inner, folder)

    async def close(self) -> None:
        """Remove the sandbox, then its record; a record left behind is the reaper's to erase."""
        await self._inner.close()
        await asyncio.to_thread(self._book.erase, self._name)


class RecordedSandboxes:
    """Records what another provider makes.

    Args:
        inner: Makes the sandboxes.
        book: Where they are written down.
    """

    def __init__(self, inner: SandboxProvider, book: SandboxBook) -> None:
        self._inner = inner
        self._book = book
        self._place = ""

    @property
    def kind(self) -> str:
        """Kind of the sandboxes."""
        return self._inner.kind

    @property
    def capabilities(self) -> Capabilities:
        """What the inner provider can do."""
        return self._inner.capabilities

    async def check(self) -> None:
        """Find out whether the inner provider works here."""
        await self._inner.check()

    async def place(self) -> str:
        """Name where the sandboxes live; asked once."""
        if not self._place:
            self._place = await self._inner.place()
        return self._place

    async def open(self, spec: SandboxSpec) -> RecordedSandbox:
        """Write the intent, make the sandbox, write its id.

        Raises:
            As the inner provider, and `BrokerError` when the intent cannot be written:
            a sandbox nobody knows of is never made.
        """
        record = _record(spec, self.kind, await self.place())
        await asyncio.to_thread(self._book.write, record)
        try:
            sandbox = await self._inner.open(spec)
        except BaseException:
            # What was half made is removed by the provider's own guarantee.
            self._book.erase(record.name)
            raise
        recorded = RecordedSandbox(sandbox, self._book, record.name)
        try:
            await asyncio.to_thread(self._book.write, replace(record, id=sandbox.id))
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return recorded

    async def list(self, labels: Mapping[str, str]) -> Sequence[SandboxRef]:
        """Return the live sandboxes that carry all the labels."""
        return await self._inner.list(labels)

    async def remove(self, ref: SandboxRef) -> None:
        """Remove a sandbox found by `list`."""
        await self._inner.remove(ref)

    async def close(self) -> None:
        """Give back what the inner provider holds."""
        await self._inner.close()


def _record(spec: SandboxSpec, kind: str, place: str) -> SandboxRecord:
    return SandboxRecord(
        name=spec.name,
        kind=kind,
        place=place,
        id="",
        job=spec.labels.get("bf.job", ""),
        index=int(spec.labels.get("bf.index", -1)),
        fence=int(spec.labels.get("bf.fence", 0)),
        worker=spec.labels.get("bf.worker", ""),
        created_at=time.time(),
    )
