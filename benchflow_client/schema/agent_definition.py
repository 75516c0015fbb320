"""A ready-made agent as data: how it is installed, started, told its model, and listened to.

The plan of a job holds the definition of each of its agents, so that every worker runs the
same program in the same way, whatever its own tables say.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from benchflow_client.schema.base import Record
from benchflow_client.schema.dialect import Dialect

__all__ = [
    "EFFORTS",
    "AgentDefinition",
    "AgentProtocol",
    "Effort",
    "InSandbox",
    "Install",
    "Launch",
    "Login",
    "Npm",
]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How hard a model is asked to think; which of them it knows is the provider's matter."""

EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

AgentProtocol = Literal["acp", "claude-stream", "codex-events", "openhands-events", "pi-events", "text"]
"""How an agent is talked to: the Agent Client Protocol, or one run for each prompt whose standard output is
read as the events of one program, or as what the agent says."""

_NAME = r"^[a-z0-9][a-z0-9._-]*$"
_PACKAGE = re.compile(r"(@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~${}-]*@[A-Za-z0-9$][A-Za-z0-9._+${}-]*")
"""A name of the registry with a version; nothing that is fetched from elsewhere, a folder of the host least of all."""


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _below(path: str, place: str) -> str:
    """Return a relative path that stays below its place."""
    if not path or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} is not below {place}")
    return path


def _variables(table: dict[str, str]) -> dict[str, str]:
    """Return variables that every system takes."""
    for name, text in table.items():
        if not _VARIABLE.fullmatch(name) or "\0" in text:
            raise ValueError(f"{name!r} is no variable, or its value holds a zero byte")
    return table


class Npm(Record):
    """Packages of the npm registry: installed once on a worker's host, shown read-only to sandboxes.

    `${version}` stands for the agent's version, `${npm}` and `${machine}` for the kind of machine as
    npm packages and as `uname -m` call it.
    """

    kind: Literal["npm"] = "npm"
    packages: tuple[str, ...] = Field(min_length=1, description="With their exact versions.")
    argv: tuple[str, ...] = Field(
        min_length=1, description="What is run: files below the folder of the packages."
    )

    @field_validator("packages")
    @classmethod
    def _of_the_registry(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for package in value:
            if not _PACKAGE.fullmatch(package):
                raise ValueError(f"{package!r} is not NAME@VERSION of a package")
        return value

    @field_validator("argv")
    @classmethod
    def _below_folder(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_below(path, "the folder of the packages") for path in value)


class InSandbox(Record):
    """A script that installs the agent in each sandbox, which needs a network for it."""

    kind: Literal["sandbox"] = "sandbox"
    script: str = Field(
        min_length=1, description="POSIX shell, run by root; `${version}` stands for the agent's version."
    )
    command: str = Field(min_length=1, description="POSIX shell that becomes the agent.")
    timeout_s: float = Field(default=900.0, gt=0, le=7200, description="Seconds the script may take.")


Install = Annotated[Npm | InSandbox, Field(discriminator="kind")]
"""How a program gets into a sandbox."""


class Launch(Record):
    """What a program is started with.

    In all of it `${NAME}` stands for a variable of the agent and `$$` for a dollar sign; in files whose
    name ends with .json or .toml it stands inside of a quoted string.
    """

    arguments: tuple[str, ...] = Field(default=(), description="After the program's own command line.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables below those of the job.")
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Path below the agent's home folder -> content, written before it starts.",
    )

    @field_validator("env")
    @classmethod
    def _well_formed(cls, value: dict[str, str]) -> dict[str, str]:
        return _variables(value)

    @field_validator("files")
    @classmethod
    def _below_home(cls, value: dict[str, str]) -> dict[str, str]:
        return {_below(path, "the home folder"): text for path, text in value.items()}


class Login(Record):
    """How an agent works on an account of its user's instead of a provider's key."""

    detect: str = Field(
        description="File below the home folder of whoever runs the worker: the login is there."
    )
    files: tuple[str, ...] = Field(
        min_length=1, description="Files below that folder, copied to the same place below the agent's home."
    )
    variables: dict[str, str] = Field(
        default_factory=dict,
        description="Variable of the worker -> file below the agent's home whose content it holds in place of a "
        "login there; empty = the agent reads the variable itself.",
    )
    hosts: tuple[str, ...] = Field(description="Hosts the agent talks to with it.")
    launch: Launch | None = Field(
        default=None, description="In the place of the agent's own launch; None = the same."
    )

    @field_validator("detect")
    @classmethod
    def _detect_below_home(cls, value: str) -> str:
        return _below(value, "the home folder")

    @field_validator("files")
    @classmethod
    def _below_home(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_below(path, "the home folder") for path in value)

    @field_validator("variables")
    @classmethod
    def _well_formed(cls, value: dict[str, str]) -> dict[str, str]:
        for path in filter(None, value.values()):
            _below(path, "the home folder")
        return _variables(value)


class AgentDefinition(Record):
    """One ready-made agent."""

    name: str = Field(pattern=_NAME, max_length=64, description="What `--agent` takes.")
    version: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._+-]*)?$",
        max_length=64,
        description="Of the agent itself; empty = not known before.",
    )
    description: str = Field(default="", description="For tables; one line.")
    aliases: tuple[str, ...] = Field(default=(), description="Other names.")
    protocol: AgentProtocol = Field(default="acp", description="How it is talked to.")
    install: Install = Field(description="How it gets into a sandbox.")
    dialects: tuple[Dialect, ...] = Field(
        default=(),
        description="What it speaks to its model, best first; empty = whatever the provider speaks.",
    )
    needs_model: bool = Field(default=True, description="It cannot work without one.")
    default_model: str | None = Field(default=None, description="LLM where the job names none.")
    requires_env: tuple[str, ...] = Field(default=(), description="Variables the job must give it.")

    launch: Launch = Field(default_factory=Launch, description="What it is always started with.")
    later: tuple[str, ...] | None = Field(
        default=None, description="Arguments of a run that goes on with the session; None = it cannot go on."
    )
    with_tools: Launch = Field(default_factory=Launch, description="More, where the task has tool servers.")
    with_effort: Launch | None = Field(
        default=None, description="More, where an effort is asked for, in `${BENCHFLOW_REASONING_EFFORT}`."
    )
    without_web: Launch = Field(
        default_factory=Launch,
        description="More, where the task's network is not open: its web tools are off.",
    )
    model_by_protocol: bool = Field(
        default=False, description="It is told its model over the protocol, not by how it is started."
    )
    model_format: Literal["bare", "provider/model"] = Field(
        default="bare", description="How the protocol names the model."
    )
    effort_option: str | None = Field(
        default=None, description="Setting of the protocol that takes the effort; None = it has none."
    )
    skill_paths: tuple[str, ...] = Field(
        default=(),
        description="Folders in which it finds skills; `$HOME` and `$WORKSPACE` stand for its own.",
    )
    login: Login | None = Field(default=None, description="Its subscription; None = it needs a key.")

    @property
    def takes_effort(self) -> bool:
        """Whether it can be asked to think harder."""
        return self.with_effort is not None or self.effort_option is not None
