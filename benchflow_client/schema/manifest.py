"""The environment manifest: services that run in the agent's own sandbox while it works."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.task_types import AbsolutePath, Flag, ImageName, PlainText, TimeoutS

__all__ = ["Manifest", "ManifestService"]

_VARIABLE: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
_Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
_Variable = Annotated[str, Field(pattern=_VARIABLE)]
_HTTP: Final = re.compile(r"http://[A-Za-z0-9._-]+(:\d{1,5})?(/[!-~]*)?")


class ManifestService(Record):
    """A program that is started before the agent and runs until the end of the trial."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="Name, also of its log.")
    command: PlainText = Field(min_length=1, description="Shell command, run as root.")
    port: _Port = Field(description="Port it listens on.")
    health_path: str = Field(
        default="/health", pattern=r"^/[!-~]*$", description="Path that answers 2xx once it is ready."
    )


class TaskSelection(Record):
    """How services learn which task they serve."""

    mechanism: Literal["env_var", "image"] = Field(
        default="env_var", description="By a variable, or not at all: the task's image holds its data."
    )
    key: _Variable = Field(default="BENCHFLOW_TASK_ID", description="Variable that gets the task's name.")
    inject_into: Literal["entrypoint", "exec"] = Field(
        default="entrypoint", description="Who must see it; here every process does."
    )


class Readiness(Record):
    """What must answer before the agent starts."""

    http: tuple[str, ...] = Field(default=(), description="Addresses; none = each service's health_path.")
    tcp: tuple[_Port, ...] = Field(default=(), description="Ports somebody must listen on.")
    timeout_sec: TimeoutS = Field(default=120.0, description="Seconds until the trial is given up.")

    @model_validator(mode="before")
    @classmethod
    def _short_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and "timeout" in data and "timeout_sec" not in data:
            data = {**data, "timeout_sec": data["timeout"]}
            del data["timeout"]
        return data

    @field_validator("http")
    @classmethod
    def _plain(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not _HTTP.fullmatch(url):
                raise ValueError(f"{url!r} is no http:// address")
        return value


class ForwardEnv(Record):
    """Variables of the worker that services get."""

    keys: tuple[_Variable, ...] = Field(default=(), description="Their names.")


class State(Record):
    """Files that services keep their state in."""

    kind: Literal["sqlite"] = Field(default="sqlite", description="What they are.")
    paths: tuple[AbsolutePath, ...] = Field(default=(), description="Kept with the trial's artifacts.")


class Manifest(Record):
    """One environment: what runs in the sandbox, and what it must answer before the agent starts."""

    name: str = Field(min_length=1, description="Name of the environment.")
    image: ImageName | None = Field(default=None, description="Image of the sandbox; None = the task's.")
    base_image: ImageName | None = Field(
        default=None, description="What the tasks' own images are built from; None = not said."
    )
    ports: tuple[_Port, ...] = Field(default=(), description="Ports that are used beside the services'.")
    services: tuple[ManifestService, ...] = Field(default=(), description="Started in this order.")
    owns_lifecycle: Flag | None = Field(
        default=None, description="The image's entry point starts them; None = where none is declared."
    )
    keep_alive: Flag = Field(default=True, description="They run until the trial ends.")
    isolation: Literal["per_task", "persistent"] = Field(
        default="per_task", description="Fresh for every trial, or shared between trials."
    )
    task_selection: TaskSelection = Field(default=TaskSelection(), description="How the task is told.")
    readiness: Readiness = Field(default=Readiness(), description="What must answer first.")
    forward_env: ForwardEnv = Field(default=ForwardEnv(), description="Variables of the worker.")
    state: State | None = Field(default=None, description="Files of their state; None = not said.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.image and self.base_image:
            raise ValueError("image and base_image exclude each other")
        if self.owns_lifecycle and self.services:
            raise ValueError("owns_lifecycle = true excludes services: who starts them?")
        if self.owns_lifecycle is False and not self.services:
            raise ValueError("owns_lifecycle = false needs services")
        if len({service.name for service in self.services}) < len(self.services):
            raise ValueError("two services have one name")
        return self

    @property
    def has_own_entrypoint(self) -> bool:
        """Return whether the image is said to start its services itself."""
        return not self.services if self.owns_lifecycle is None else self.owns_lifecycle
