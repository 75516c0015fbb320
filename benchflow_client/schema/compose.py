"""What a task's docker-compose.yaml says, after its variables are filled in: the part that is run.

The spellings compose allows (lists or tables, text or numbers with units) become one form here.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from benchflow_client.schema.base import Record

MAIN_SERVICE = "main"
"""The service the agent works in."""

SAFE_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE",
})  # fmt: skip
"""Kernel rights a task may ask for: none of them reaches the worker's host or its network."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|h|m|s)")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST_DIGITS = 16  # of a size or a duration; more is no number an engine takes
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*")


def _size(value: Any) -> Any:
    """Return bytes of `512m`, `1.5gb` or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError('expected a size, e.g. "512m"')
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or len(match[1]) > _MOST_DIGITS:
        raise ValueError('expected a size, e.g. "512m"')
    return int(float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " "))


def _seconds(value: Any) -> Any:
    """Return seconds of `1m30s`; a bare number is refused, as compose does."""
    text = str(value).strip()
    parts = _DURATION.findall(text)
    if not parts or len(text) > _MOST_DIGITS or "".join(number + unit for number, unit in parts) != text:
        raise ValueError('expected a duration, e.g. "1m30s"')
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _words(value: Any) -> Any:
    """Return the words of a command line, split as a shell does."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from error
    return [_text(item) for item in value] if isinstance(value, list) else value


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """Return a table of `NAME=VALUE` items; None = the name alone was given."""
    if isinstance(value, list):
        split = [str(item).partition("=") for item in value]
        return {name: text if mark else None for name, mark, text in split}
    return {name: _text(item) for name, item in value.items()} if isinstance(value, dict) else value


def _limit(value: Any) -> Any:
    return {"soft": value, "hard": value} if isinstance(value, int | str) else value


Size = Annotated[int, BeforeValidator(_size), Field(ge=0)]
"""Bytes."""
Seconds = Annotated[float, BeforeValidator(_seconds)]
"""Seconds."""
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
"""A command line as words."""
Texts = Annotated[tuple[str, ...], BeforeValidator(_list)]
"""One text or several."""
Pairs = Annotated[dict[str, str | None], BeforeValidator(_pairs)]
"""Names with values."""
Text = Annotated[str, BeforeValidator(_text)]
"""Text; a number counts as its digits."""


class Build(Record):
    """How an image is built."""

    context: str = Field(default=".", description="Folder, relative to environment/.")
    dockerfile: str = Field(default="Dockerfile", description="File, relative to the context.")
    args: Pairs = Field(default={}, description="Build arguments.")
    target: str | None = Field(default=None, description="Stage to stop at; None = the last.")

    @model_validator(mode="before")
    @classmethod
    def _folder(cls, value: Any) -> Any:
        return {"context": value} if isinstance(value, str) else value


class HealthCheck(Record):
    """How the engine finds out whether a service is ready."""

    test: tuple[str, ...] = Field(
        default=(), description="CMD, CMD-SHELL or NONE, then words; () = the image's."
    )
    interval: Seconds = Field(default=30.0, description="Seconds between two checks.")
    timeout: Seconds = Field(default=30.0, description="Seconds one check may take.")
    retries: int = Field(default=3, ge=0, description="Failures in a row that make it unhealthy.")
    start_period: Seconds = Field(default=0.0, description="Seconds in which failures do not count.")
    disable: bool = Field(default=False, description="No check, although the image has one.")

    @field_validator("test", mode="before")
    @classmethod
    def _command(cls, value: Any) -> Any:
        if isinstance(value, str):
            return ("CMD-SHELL", value)
        if isinstance(value, list) and value and value[0] not in ("CMD", "CMD-SHELL", "NONE"):
            raise ValueError("expected CMD, CMD-SHELL or NONE first")
        return value


class Dependency(Record):
    """What another service must have come to before this one starts."""

    condition: Literal["service_started", "service_healthy", "service_completed_successfully"] = Field(
        default="service_started", description="What is waited for."
    )
    required: bool = Field(default=True, description="False = start even where the other is left out.")
    restart: bool = Field(default=False, description="Only of meaning to the compose program.")


class Mount(Record):
    """A volume, a folder of the task, or memory, placed in a service."""

    type: Literal["volume", "bind", "tmpfs"] = Field(description="What is placed.")
    source: str = Field(default="", description="Volume or path; empty = a volume of its own.")
    target: str = Field(description="Absolute path in the service.")
    read_only: bool = Field(default=False, description="Nothing is written to it.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        source, _, rest = value.partition(":")
        if not rest:
            return {"type": "volume", "target": source}
        target, _, options = rest.partition(":")
        kind = "bind" if source.startswith((".", "/", "~")) else "volume"
        return {"type": kind, "source": source, "target": target, "read_only": "ro" in options.split(",")}

    @field_validator("target")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or posixpath.normpath(value) == "/":
            raise ValueError("expected an absolute path below /")
        return posixpath.normpath(value)


class Attachment(Record):
    """How a service is reached on a network."""

    aliases: tuple[str, ...] = Field(default=(), description="More names of it.")


class ULimit(Record):
    """A limit of the kernel."""

    soft: int = Field(description="What a process starts with.")
    hard: int = Field(description="What it may raise it to.")


class Service(Record):
    """One service."""

    image: str | None = Field(default=None, description="Ready image; with build, only its name.")
    build: Build | None = Field(default=None, description="How the image is built; None = it is ready.")
    command: Words | None = Field(default=None, description="Arguments; None = the image's.")
    entrypoint: Words | None = Field(default=None, description="Program; None = the image's.")
    environment: Pairs = Field(default={}, description="Variables; None = the worker's, where it is known.")
    env_file: Texts = Field(default=(), description="Files with variables, relative to environment/.")
    working_dir: str | None = Field(default=None, description="Workspace; None = the image's.")
    user: Text | None = Field(default=None, description="Who its program runs as; None = the image's.")
    hostname: str | None = Field(default=None, description="Its own name for itself.")
    container_name: str | None = Field(default=None, description="One more name on its networks.")
    init: bool = Field(default=True, description="A first process that reaps orphans.")
    read_only: bool = Field(default=False, description="Its root folder cannot be written.")
    restart: Text = Field(default="no", description="When the engine starts it again.")
    healthcheck: HealthCheck | None = Field(default=None, description="None = the image's.")
    depends_on: dict[str, Dependency] = Field(default={}, description="Services that come first.")
    networks: dict[str, Attachment] = Field(default={}, description="{} = the default network.")
    network_mode: Literal["none"] | None = Field(default=None, description="none = no network at all.")
    volumes: tuple[Mount, ...] = Field(default=(), description="What is placed in it.")
    tmpfs: Texts = Field(default=(), description="Paths held in memory, with options after a colon.")
    extra_hosts: dict[str, str] = Field(default={}, description="Names with fixed addresses.")
    cap_add: tuple[str, ...] = Field(default=(), description="Kernel rights given.")
    cap_drop: tuple[str, ...] = Field(default=(), description="Kernel rights taken.")
    shm_size: Size | None = Field(default=None, description="Bytes of /dev/shm; None = the engine's 64 MiB.")
    ulimits: dict[str, Annotated[ULimit, BeforeValidator(_limit)]] = Field(default={}, description="Limits.")
    mem_limit: Size | None = Field(default=None, description="Bytes of memory.")
    cpus: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="Processor cores.")
    pids_limit: int | None = Field(default=None, description="Processes at most.")
    stop_signal: str | None = Field(default=None, description="Signal that ends it.")

    @field_validator("depends_on", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return {str(name): {} for name in value} if isinstance(value, list) else value

    @field_validator("networks", mode="before")
    @classmethod
    def _attachments(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {str(name): {} for name in value}
        return {name: item or {} for name, item in value.items()} if isinstance(value, dict) else value

    @field_validator("extra_hosts", mode="before")
    @classmethod
    def _hosts(cls, value: Any) -> Any:
        if isinstance(value, list):
            split = [re.split(r"[=:]", str(item), maxsplit=1) for item in value]
            value = {parts[0]: parts[-1] for parts in split}
        return value

    @field_validator("extra_hosts")
    @classmethod
    def _addresses(cls, value: dict[str, str]) -> dict[str, str]:
        for name, address in value.items():
            if address == "host-gateway":
                raise ValueError(f"{name} would name the worker's host, which a task must not reach")
        return value

    @field_validator("cap_add", "cap_drop")
    @classmethod
    def _plain_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.upper().removeprefix("CAP_") for name in value)

    @field_validator("cap_add")
    @classmethod
    def _safe(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in SAFE_CAPABILITIES:
                raise ValueError(f"{name} would give the task rights over the worker's host or its network")
        return value

    @field_validator("restart")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if not re.fullmatch(r"no|false|always|unless-stopped|on-failure(:\d+)?", value):
            raise ValueError("expected no, always, unless-stopped or on-failure")
        return "no" if value == "false" else value


class Network(Record):
    """One network of the file."""

    internal: bool = Field(default=False, description="Nothing outside is reached from it.")


class Compose(Record):
    """The services of a task, and what they share."""

    services: dict[str, Service] = Field(description="Every service that is started, `main` included.")
    networks: dict[str, Network] = Field(default={}, description="Networks that are named.")
    volumes: tuple[str, ...] = Field(default=(), description="Volumes that are named.")

    @field_validator("services")
    @classmethod
    def _safe_names(cls, value: dict[str, Service]) -> dict[str, Service]:
        for name in value:
            if not _NAME.fullmatch(name) or len(name) > 63:
                raise ValueError(f"{name!r} cannot be a host's name: letters, digits, '.', '_' and '-' only")
        return value

    @property
    def main(self) -> Service:
        """Return the service the agent works in."""
        return self.services[MAIN_SERVICE]

    @property
    def order(self) -> tuple[str, ...]:
        """Return all services so that each comes after those it depends on, else as written."""
        done: dict[str, None] = {}
        left = list(self.services)
        while left:
            ready = [name for name in left if self.needs(name) <= done.keys()]
            done |= dict.fromkeys(ready[:1] or left)
            left = [name for name in left if name not in done]
        return tuple(done)

    def needs(self, name: str) -> set[str]:
        """Return the services that must come before one; those that are left out do not count."""
        return {other for other in self.services[name].depends_on if other in self.services}


class ComposeFile(Record):
    """A task's compose file as it stands, for the worker that fills its variables in.

    `data` holds only what is run; what would need more than the engine is `refused`.
    """

    file: str = Field(description="Its path below the task folder.")
    data: dict[str, Any] = Field(description="Its tables, variables not filled in.")
    refused: tuple[str, ...] = Field(default=(), description="Why it cannot be run: file, line, key, reason.")
    by_plugin: dict[str, dict[str, Any]] = Field(
        default={}, description="Keys of services that only the compose plugin runs, by service."
    )
    needs_plugin: tuple[str, ...] = Field(default=(), description="Why it needs that plugin, in such lines.")

    @property
    def has_image(self) -> bool:
        """Return whether it says itself what the agent's service is made from."""
        main = self.data["services"][MAIN_SERVICE]
        return bool(main.get("build") or (main.get("image") and "_IMAGE_NAME" not in main["image"]))
