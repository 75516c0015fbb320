"""What a rollout asks for besides its own machine: the services of its task, ready to be started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.schema.compose import MAIN_SERVICE, Compose, Service

UNDECLARED_MEMORY_MB = 512
"""What a service that declares no limit counts for on a worker with limited memory; it may use as much
as the main service may. A database at rest needs less."""


@dataclass(frozen=True, slots=True)
class ServicesSpec:
    """The services of a task.

    Attributes:
        compose: What they are; `main` is the sandbox itself.
        folder: The task's environment folder on this host; paths in `compose` start there.
        env: Variables of each service, resolved; those of `main` are the sandbox's.
        digest: Digest of `folder`, for images that are built from it.
        by_plugin: Keys of services that only the docker compose plugin runs, by service, filled in.
        needs_plugin: Why that plugin is needed: file, line, key.
    """

    compose: Compose
    folder: Path
    env: Mapping[str, Mapping[str, str]]
    digest: str
    by_plugin: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs_plugin: tuple[str, ...] = ()

    @property
    def side(self) -> Mapping[str, Service]:
        """Return the services beside the main one, each after those it depends on."""
        services = self.compose.services
        return {name: services[name] for name in self.compose.order if name != MAIN_SERVICE}

    @property
    def cpus(self) -> float:
        """Return the cores the side services were promised; one that declares none shares what is left."""
        return sum(service.cpus or 0.0 for service in self.side.values())

    @property
    def memory_mb(self) -> int:
        """Return the memory the side services count for, in MiB."""
        return sum(
            UNDECLARED_MEMORY_MB if not service.mem_limit else -(-service.mem_limit >> 20)
            for service in self.side.values()
        )
