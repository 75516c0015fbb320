"""The ability to run services beside a sandbox: a protocol of its own, which few providers have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from benchflow_client.errors import SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_workers.sandbox.base import Sandbox

SERVICE_LOGS_DIR = "services"
"""Folder of an attempt that the logs of its services are kept in."""


@runtime_checkable
class RunsServices(Protocol):
    """A sandbox that has services beside it, on a private network of its trial."""

    @property
    def services(self) -> Mapping[str, Sandbox]:
        """Each side service by name, as a sandbox in which commands are run; closing the main one ends all."""
        ...

    async def save_service_logs(self, folder: Path) -> None:
        """Write what each side service printed to `folder`, as `<service>.log`, its end where it is long.

        Raises:
            SandboxError: `sandbox.transfer_failed`.
        """
        ...


def services_of(sandbox: Sandbox) -> Mapping[str, Sandbox]:
    """Return the services beside a sandbox; none where it has none."""
    return sandbox.services if isinstance(sandbox, RunsServices) else {}


def service_sandbox(sandbox: Sandbox, name: str) -> Sandbox:
    """Return a service of a task as a sandbox; `main` is the sandbox itself.

    Raises:
        SandboxError: `task.unsupported`: the task has no such service.
    """
    if name == MAIN_SERVICE:
        return sandbox
    found = services_of(sandbox)
    if name not in found:
        raise SandboxError(
            "task.unsupported",
            f"The task has no service {name!r}; it has {', '.join([MAIN_SERVICE, *found])}.",
            hint="Name one of environment/docker-compose.yaml.",
        )
    return found[name]


async def save_service_logs(sandbox: Sandbox, folder: Path) -> None:
    """Write the logs of the services beside a sandbox; nothing where it has none."""
    if services_of(sandbox) and isinstance(sandbox, RunsServices):
        await sandbox.save_service_logs(folder)
