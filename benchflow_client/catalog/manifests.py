"""Agents that are described in files of the user's: `manifest.toml` of the agents' contract, version 1."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchflow_client.catalog.agents import AGENTS, AgentEntry, find_agent
from benchflow_client.errors import AgentManifestError, UnknownAgentError
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Launch
from benchflow_client.schema.dialect import Dialect

__all__ = ["read_manifests"]

FILE: Final = "manifest.toml"
_LARGEST_BYTES: Final = 1 << 20


class _Manifest(BaseModel):
    """The keys of a manifest; later versions of the contract may have more."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    contract_version: str = Field(pattern=r"^1(\.\d+)*$")
    name: str
    version: str = ""
    description: str = ""
    aliases: tuple[str, ...] = ()
    install_cmd: str = Field(min_length=1)
    launch_cmd: str = Field(min_length=1)
    install_timeout: float = Field(default=900.0, gt=0, le=7200)
    protocol: Literal["acp", "text"] = "acp"
    api_protocol: Dialect | Literal["", "native"] = ""
    acp_model_format: Literal["bare", "provider/model", "registered-provider/model"] = "bare"
    supports_acp_set_model: bool = True
    requires_env: tuple[str, ...] = ()
    env_mapping: dict[str, str] = Field(default_factory=dict)
    default_model: str = ""
    skill_paths: tuple[str, ...] = ()

    def definition(self) -> AgentDefinition:
        """Return the agent it describes."""
        return AgentDefinition(
            name=self.name,
            version=self.version,
            description=self.description,
            aliases=self.aliases,
            protocol=self.protocol,
            install=InSandbox(
                script=self.install_cmd, command=self.launch_cmd, timeout_s=self.install_timeout
            ),
            dialects=(self.api_protocol,) if self.api_protocol and self.api_protocol != "native" else (),
            needs_model=False,
            default_model=self.default_model or None,
            requires_env=self.requires_env,
            launch=Launch(env={native: f"${{{ours}}}" for ours, native in self.env_mapping.items()}),
            model_by_protocol=self.protocol == "acp" and self.supports_acp_set_model,
            model_format="bare" if self.acp_model_format == "bare" else "provider/model",
            skill_paths=self.skill_paths,
        )


def read_manifests(folder: Path) -> Mapping[str, AgentEntry]:
    """Return the agents of a folder by name: each `NAME/manifest.toml` or `NAME.toml` describes one.

    Raises:
        AgentManifestError: The folder or a file cannot be read, a key is missing or wrong, or a
            name is taken.
    """
    found: dict[str, AgentEntry] = {}
    for file in _files(folder):
        entry = AgentEntry.of(_read(file))
        for name in (entry.name, *_aliases(entry)):
            if _is_taken(name) or any(name in {other.name, *_aliases(other)} for other in found.values()):
                raise AgentManifestError(
                    f"{file}: the name {name!r} is another agent's.", hint="Choose another name or alias."
                )
        found[entry.name] = entry
    return found


def _files(folder: Path) -> Iterator[Path]:
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise AgentManifestError(
            f"The folder of agents {folder} cannot be read: {error.strerror}.",
            hint="Correct or unset BENCHFLOW_AGENTS_DIR.",
        ) from error
    for item in items:
        if item.is_dir() and (item / FILE).is_file():
            yield item / FILE
        elif item.suffix == ".toml" and item.is_file():
            yield item


def _read(file: Path) -> AgentDefinition:
    try:
        if file.stat().st_size > _LARGEST_BYTES:
            raise AgentManifestError(f"{file} is too large for a manifest.", hint="Keep it below 1 MiB.")
        table: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        return _Manifest.model_validate(table).definition()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise AgentManifestError(
            f"{file}: {place}: {first['msg']}.", hint="docs/agents.md lists the keys of a manifest."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise AgentManifestError(f"{file} cannot be read: {reason}.", hint="Correct the file.") from error


def _aliases(entry: AgentEntry) -> tuple[str, ...]:
    return () if entry.definition is None else entry.definition.aliases


def _is_taken(name: str) -> bool:
    try:
        return name in AGENTS or find_agent(name) is not None
    except UnknownAgentError:
        return False
