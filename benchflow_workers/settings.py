"""The only reader of the environment on the workers' side."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from benchflow_client.errors import WorkerError
from benchflow_client.schema.base import Record
from benchflow_client.settings import PREFIX
from benchflow_client.tasks.env_file import EnvLineError, read_env_lines

ENV_FILE = Path(".env")
"""File in the worker's working directory with variables that names in specs and tasks refer to too."""

_GPU = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9A-Za-z/-]+")
"""A device as `nvidia-smi -L` names it: by number or UUID."""

_SERVER = re.compile(r"(?!\d+(\.\d+)*:)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:[1-9]\d{0,4}")
"""A server by its name and port."""


_LISTEN = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):[1-9]\d{0,4}")
_LAST_PORT: Final = 65535


class WorkerSettings(Record):
    """What the environment says to a worker; each field is the variable `BENCHFLOW_<NAME>`."""

    lease_ttl_s: float = Field(
        default=60.0,
        ge=0.5,
        le=3600,
        description="Life of a trial's lease in seconds: a dead worker's trial runs again after it.",
    )
    drain_grace_s: float = Field(
        default=0.0,
        ge=0,
        le=7 * 24 * 3600,
        description="Seconds a stopping worker lets its running trials go on; then they run elsewhere.",
    )
    reconcile_s: float = Field(default=5.0, gt=0, le=600, description="Seconds between repairs.")
    reap_s: float = Field(
        default=60.0, gt=0, le=3600, description="Seconds between sweeps for leftover sandboxes."
    )
    docker_host: str | None = Field(default=None, description="Docker daemon; None = as the docker command.")
    docker_pull: str = Field(
        default="missing", pattern="^(missing|always|never)$", description="When a ready image is pulled."
    )
    extra_ca: Path | None = Field(
        default=None,
        description="Certificates added to built images, for networks that inspect TLS; None = none.",
    )
    gpus: str = Field(
        default="",
        description="GPUs its containers may be given, each to one trial at a time: numbers or UUIDs of "
        "`nvidia-smi -L`, several separated by commas. No other worker may have the same.",
    )
    gpu_types: str = Field(
        default="",
        description="Names of what these GPUs are, for tasks that ask for a type: `H100`; several names of one type "
        "separated by commas.",
    )
    local_rootfs: str = Field(
        default="", description="Unpacked images for local: `NAME=/folder`, several separated by commas."
    )
    local_mode: str = Field(
        default="auto", pattern="^(auto|namespaces|rootless)$", description="How local sandboxes are made."
    )
    egress_private: str = Field(
        default="",
        description="What lists of hosts may reach of private networks: addresses and blocks (`10.8.0.0/16`) that "
        "permitted names may have, and servers (`HOST:PORT`) that every list reaches; several separated by commas.",
    )
    prices: Path | None = Field(
        default=None,
        description="Your own prices of models, before the maintained ones: a JSON file, US dollars for a million tokens.",
    )
    gateway_listen: str = Field(
        default="",
        description="Where the model gateway takes calls from other hosts, `HOST:PORT`, for sandboxes that reach it no "
        "other way; set it with the next one. Empty = only on this host's loopback.",
    )
    gateway_public_url: str = Field(
        default="",
        validate_default=True,
        description="What such sandboxes call it: `https://HOST[:PORT][/PATH]`, of a proxy that ends TLS before it.",
    )
    null_exec_s: float = Field(default=0.0, ge=0, description="Seconds a command takes in a null sandbox.")

    @field_validator("gpus")
    @classmethod
    def _known_gpus(cls, value: str) -> str:
        items = _listed(value)
        for item in items:
            if not _GPU.fullmatch(item):
                raise ValueError(f"{item!r} is neither the number of a GPU nor its UUID, as GPU-8f6d...")
        if len(set(items)) < len(items):
            raise ValueError("a GPU stands there twice")
        return ",".join(items)

    @field_validator("egress_private")
    @classmethod
    def _known_private(cls, value: str) -> str:
        items = _listed(value)
        for item in items:
            if not (_is_block(item) or _SERVER.fullmatch(item)):
                raise ValueError(f"{item!r} is neither an address, nor a block as 10.8.0.0/16, nor HOST:PORT")
        return ",".join(items)

    @field_validator("gateway_listen")
    @classmethod
    def _known_listen(cls, value: str) -> str:
        if value and not _LISTEN.fullmatch(value):
            raise ValueError(f"{value!r} is not HOST:PORT, as 0.0.0.0:8500")
        if value and int(value.rpartition(":")[2]) > _LAST_PORT:
            raise ValueError(f"{value!r} names a port above {_LAST_PORT}")
        return value

    @field_validator("gateway_public_url")
    @classmethod
    def _known_public_url(cls, value: str, others: ValidationInfo) -> str:
        if problem := _url_problem(value):
            raise ValueError(problem)
        if bool(value) != bool(others.data.get("gateway_listen", value)):
            raise ValueError(f"it and {PREFIX}GATEWAY_LISTEN are set together, or neither is")
        return value.rstrip("/")

    def private_servers(self) -> tuple[str, ...]:
        """Return what lists of hosts may reach of private networks."""
        return tuple(filter(None, self.egress_private.split(",")))

    def gpu_ids(self) -> tuple[str, ...]:
        """Return the GPUs its containers may be given."""
        return tuple(_listed(self.gpus))

    def gpu_type_names(self) -> tuple[str, ...]:
        """Return the names of what these GPUs are."""
        return tuple(_listed(self.gpu_types))

    def rootfs(self) -> dict[str, Path]:
        """Return the image names that local maps to folders."""
        pairs = (item.partition("=") for item in self.local_rootfs.split(",") if item)
        return {name: Path(folder) for name, _, folder in pairs}


class OtelSettings(NamedTuple):
    """What the standard variables of OpenTelemetry say to a worker.

    Attributes:
        sends_spans: A collector is named that takes them, and nothing forbids it.
        protocol: How they are to be sent; empty = as the sender likes.
    """

    sends_spans: bool
    protocol: str


def _url_problem(value: str) -> str:
    """Return why a URL cannot be the gateway's, quoting no secret in it; empty = it can, or there is none."""
    try:
        url = urlsplit(value)
        if not value or (url.scheme in {"http", "https"} and url.hostname and url.port != 0):
            has_more = "@" in url.netloc or url.query or url.fragment or value != "".join(value.split())
            return "it may have a path, and nothing else beside host and port" if has_more else ""
    except ValueError:
        pass
    return "it is not a URL as https://models.example.org"


def _listed(value: str) -> list[str]:
    return [item.strip() for item in value.split(",") if item.strip()]


def _is_block(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def load(environ: Mapping[str, str]) -> WorkerSettings:
    """Read the worker's settings from its variables.

    Raises:
        WorkerError: A variable has a value that is not allowed.
    """
    values = {
        name: environ[PREFIX + name.upper()]
        for name in WorkerSettings.model_fields
        if environ.get(PREFIX + name.upper())
    }
    try:
        return WorkerSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        raise WorkerError(
            f"{name} is not valid: {first['msg']}.", hint=f"Correct or unset {name}."
        ) from error


def load_otel(environ: Mapping[str, str]) -> OtelSettings:
    """Read what says where spans go; the rest of these variables is read by the libraries that send them."""
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    is_off = (
        environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return OtelSettings(bool(endpoint) and not is_off, protocol or "")


def with_env_file(environ: Mapping[str, str], file: Path | None) -> dict[str, str]:
    """Return variables with those of a `.env` file, where it is given and exists; the first ones win.

    Raises:
        WorkerError: It cannot be read, or a line of it is wrong: says which, and quotes nothing.
    """
    if file is None:
        return dict(environ)
    place = file
    try:
        place = file.absolute()
        own = read_env_lines(place.read_text(encoding="utf-8"), environ.get) if place.is_file() else {}
    except FileNotFoundError:  # so is the working directory of a process that outlives it
        own = {}
    except EnvLineError as error:
        raise WorkerError(
            f"{place}, line {error.number}: {error}.", hint="Correct the line, or start the worker elsewhere."
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise WorkerError(
            f"{place} cannot be read: {why}.",
            hint="Correct or remove the file, or start the worker elsewhere.",
        ) from None
    return {**own, **environ}


def process_environ() -> dict[str, str]:
    """Return this process's variables: what names in specs and tasks refer to."""
    return dict(os.environ)
