"""The only reader of the environment on the client's side."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, SecretStr, ValidationError

from benchflow_client.addresses import Addresses, fleet_addresses
from benchflow_client.errors import BrokerError, JobSpecError
from benchflow_client.schema.base import Record

PREFIX = "BENCHFLOW_"
"""Every variable of ours starts with this."""


class Settings(Record):
    """What the environment says; each field is the variable `BENCHFLOW_<NAME>`."""

    broker_url: SecretStr | None = Field(
        default=None,
        description="Broker: `redis://:PASSWORD@HOST:6379/0`, which is the ledger too, or "
        "`amqp://USER:PASSWORD@HOST:5672/VHOST`; None = the embedded fleet.",
    )
    ledger_url: SecretStr | None = Field(
        default=None,
        description="Redis of ledger and results, where it is not the broker; needed beside a RabbitMQ.",
    )
    store_url: str | None = Field(
        default=None, description="Store: a folder, or `s3://bucket/prefix`; None = the jobs folder."
    )
    s3_endpoint: str | None = Field(
        default=None, description="Address of an S3-compatible service; None = AWS."
    )
    s3_region: str = Field(default="us-east-1", description="Region of the bucket.")
    s3_access_key_id: str | None = Field(default=None, description="Key id; None = the SDK's own search.")
    s3_secret_access_key: SecretStr | None = Field(
        default=None, description="Secret; None = the SDK's own search."
    )
    s3_allow_http: bool = Field(
        default=False, description="Allow http:// to a service that is not on this machine."
    )
    state_dir: Path = Field(description="Folder for caches and the embedded fleet's files.")
    fleet: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$",
        description="Name of the fleet; sandboxes of other fleets are never touched. None = a name of the "
        "ledger's own, which is lost with the ledger's data.",
    )
    env_registry: Path | None = Field(
        default=None,
        description="Folder of `NAME@VERSION.toml` files that --environment-manifest names; None = there is none.",
    )
    agents_dir: Path | None = Field(
        default=None,
        description="Folder of manifests of your own agents, `NAME/manifest.toml` or `NAME.toml`; None = there is none.",
    )
    user: str = Field(description="Who submits and cancels, for people.")

    def addresses(self) -> Addresses | None:
        """Return where broker and ledger are; None = the embedded fleet.

        Raises:
            BrokerError: One of the two is missing or of a kind that cannot work.
        """
        ledger = None if self.ledger_url is None else self.ledger_url.get_secret_value()
        if self.broker_url is not None:
            return fleet_addresses(self.broker_url.get_secret_value(), ledger)
        if ledger is None:
            return None
        raise BrokerError(
            "BENCHFLOW_LEDGER_URL is set, and BENCHFLOW_BROKER_URL is not.",
            hint="Set BENCHFLOW_BROKER_URL too; where one Redis is both, it is the only one to set.",
        )


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings.

    Args:
        environ: Variables to read; None = the process's environment.

    Raises:
        JobSpecError: A variable has a value that is not allowed.
    """
    source = os.environ if environ is None else environ
    values = {
        name: source[PREFIX + name.upper()]
        for name in Settings.model_fields
        if source.get(PREFIX + name.upper())
    }
    values.setdefault("state_dir", _state_dir(source))
    values.setdefault("user", _user(source))
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        raise JobSpecError(
            f"{name} is not valid: {first['msg']}.", hint=f"Correct or unset {name}."
        ) from error


def _state_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_STATE_HOME") or str(
        Path(environ.get("HOME") or "~").expanduser() / ".local/state"
    )
    return str(Path(base) / "benchflow")


def _user(environ: Mapping[str, str]) -> str:
    for name in ("LOGNAME", "USER"):
        if environ.get(name):
            return environ[name]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def docker_address(environ: Mapping[str, str] | None = None) -> str | None:
    """Return where a worker of this process's variables looks for Docker; None = the default socket."""
    source = os.environ if environ is None else environ
    return source.get("BENCHFLOW_DOCKER_HOST") or source.get("DOCKER_HOST") or None


def process_environ() -> dict[str, str]:
    """Return this process's variables, for a worker it starts on the same machine."""
    return dict(os.environ)
