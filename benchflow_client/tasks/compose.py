"""Read a task's docker-compose.yaml: what is run over the engine, and what is refused with its line.

The client reads it to tell its author; the worker fills its variables in. Nothing of the
worker's host can be named: no path, no device, no environment variable that the task
did not declare.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchflow_client.schema.compose import MAIN_SERVICE, Compose, ComposeFile, Mount, Service
from benchflow_client.schema.task import TaskConfig
from benchflow_client.tasks.compose_keys import NOT_RUN, ServiceReader, keep_networks, keep_volumes
from benchflow_client.tasks.compose_variables import (
    Lookup,
    TemplateError,
    VariableError,
    fill_in,
    over,
    read_env_file,
)
from benchflow_client.tasks.config import validate
from benchflow_client.tasks.findings import Findings
from benchflow_client.tasks.raw import KeyPath, Raw
from benchflow_client.tasks.text import CONFIG_LIMIT_BYTES, peek_text, read_text
from benchflow_client.tasks.yaml_text import parse_yaml

__all__ = ["COMPOSE_NAMES", "MAIN_IMAGE", "compose_lookup", "read_compose", "resolve_compose"]

COMPOSE_NAMES: Final = ("environment/docker-compose.yaml", "environment/docker-compose.yml")
"""Where the file stands; the first one that is there is read."""

MAIN_IMAGE: Final = "bf-image-of-main"
"""What `${MAIN_IMAGE_NAME}` is filled in with: the image the task builds or names."""

_HOST_LOGS: Final = "bf-host-logs"
"""Stands for a folder of the host that other runners collect logs in; logs are copied out instead."""

_FIXED: Final = {
    "CONTEXT_DIR": ".",
    "MAIN_IMAGE_NAME": MAIN_IMAGE,
    "PREBUILT_IMAGE_NAME": MAIN_IMAGE,
    "ENV_VERIFIER_LOGS_PATH": "/logs/verifier",
    "ENV_AGENT_LOGS_PATH": "/logs/agent",
    "ENV_ARTIFACTS_PATH": "/logs/artifacts",
    "HOST_VERIFIER_LOGS_PATH": f"{_HOST_LOGS}/verifier",
    "HOST_AGENT_LOGS_PATH": f"{_HOST_LOGS}/agent",
    "HOST_ARTIFACTS_PATH": f"{_HOST_LOGS}/artifacts",
}
"""Variables every runner of such tasks sets."""

_HIDDEN: Final = ("tests", "verifier", "solution", "oracle")
"""Folders of a task that the agent's service must not be given."""

_TOP: Final = ("services", "networks", "volumes", "configs", "secrets")
_TOP_WITHOUT_MEANING: Final = frozenset({"version", "name"})
_ANY_VALUE: Final = "1"  # stands for a variable only the worker knows; a number, a size and a text


def read_compose(folder: Path, config: TaskConfig | None, findings: Findings) -> ComposeFile | None:
    """Return what a task's compose file says, or None when a problem was added.

    Args:
        folder: The task folder, which holds one of `COMPOSE_NAMES`.
        config: What the task file declares, for its variables and limits; None = it cannot be read.
        findings: Gets the problems.
    """
    file = next((name for name in COMPOSE_NAMES if (folder / name).is_file()), COMPOSE_NAMES[0])
    text = read_text(folder, file, findings, limit_bytes=CONFIG_LIMIT_BYTES)
    raw = None if text is None else parse_yaml(text, file, findings, first_line=1)
    if raw is None:
        return None
    before = len(findings.problems)
    refused: list[str] = []
    readers = _readers(raw, findings, refused)
    data = _kept(raw, readers, refused)
    found = ComposeFile(
        file=file,
        data=data,
        refused=tuple(refused),
        by_plugin={name: reader.by_plugin for name, reader in readers.items() if reader.by_plugin},
        needs_plugin=tuple(line for reader in readers.values() for line in reader.needs),
    )
    for line in found.needs_plugin:
        findings.warning(line)
    if len(findings.problems) == before:
        _check_values(folder, found, raw, findings, config=config or TaskConfig())
    return found if len(findings.problems) == before else None


def resolve_compose(file: ComposeFile, lookup: Lookup) -> Compose:
    """Return the services with all variables filled in.

    Raises:
        VariableError: A variable has no value.
        TemplateError: A text is no template.
        pydantic.ValidationError: A value that came from a variable is none of its kind.
    """
    return Compose.model_validate(_without_host_logs(fill_in(file.data, lookup)))


def compose_lookup(
    folder: Path, config: TaskConfig, env: Mapping[str, str], *, verifier_dir: str | None
) -> Lookup:
    """Return the variables a compose file may name: the runner's own, the task's, those of its `.env`.

    Args:
        folder: The task folder.
        config: What the task file declares.
        env: Its `environment.env`, resolved.
        verifier_dir: Folder of its tests.

    Raises:
        VariableError: The task's `.env` names one that has no value.
        TemplateError: It has a text that is no template.
    """
    sandbox = config.sandbox
    own = {
        **_FIXED,
        "TEST_DIR": f"/{verifier_dir or 'tests'}",
        "CPUS": f"{sandbox.cpus if sandbox.cpus is not None else 0:g}",
        "MEMORY": f"{sandbox.memory_mb or 0}M",
    }
    text = peek_text(folder / "environment/.env") or ""
    return over(own, env, read_env_file(text, over(own, env)))


def _readers(raw: Raw, findings: Findings, refused: list[str]) -> dict[str, ServiceReader]:
    """Return a reader for every service that is run."""
    for key in raw.data:
        if key not in _TOP and key not in _TOP_WITHOUT_MEANING and not key.startswith("x-"):
            refused.append(raw.says((key,), NOT_RUN))
    services = {} if raw.data.get("services") is None else raw.data["services"]
    if not isinstance(services, dict):
        findings.problem(raw.says(("services",), "expected a table of services"))
        return {}
    readers = {}
    for name, table in services.items():
        if not isinstance(table, dict | None):
            findings.problem(raw.says(("services", name), "expected a table"))
        elif name == MAIN_SERVICE or not (table or {}).get("profiles"):
            readers[name] = ServiceReader(raw, name, table or {}, refused)
    return readers


def _kept(raw: Raw, readers: Mapping[str, ServiceReader], refused: list[str]) -> dict[str, Any]:
    """Return the tables that are run, without what is refused or without meaning here."""
    return {
        "services": {MAIN_SERVICE: {}, **{name: reader.kept() for name, reader in readers.items()}},
        "networks": keep_networks(raw, refused),
        "volumes": keep_volumes(raw, refused),
    }


def _check_values(
    folder: Path, file: ComposeFile, raw: Raw, findings: Findings, *, config: TaskConfig
) -> None:
    """Add a problem for each value that is wrong whatever the variables are."""
    try:
        known = compose_lookup(folder, config, config.sandbox.env, verifier_dir=None)
        filled = _filled(file, known)
    except (TemplateError, VariableError) as error:
        findings.problem(f"{file.file}: {error}")
        return
    shown = Raw(raw.file, _without_host_logs(filled), raw.find_lines, raw.written)
    compose = validate(Compose, shown, findings)
    for path, reason in () if compose is None else _broken_references(folder, compose):
        findings.problem(raw.says(path, reason))


def _filled(file: ComposeFile, known: Lookup) -> Any:
    """Return the tables with values to check with: what nobody declares has its default, where it has one."""
    try:
        return fill_in(file.data, lambda name: None if known(name) is None else _plain(known(name)))
    except VariableError:
        return fill_in(file.data, lambda name: _plain(known(name)))


def _plain(value: str | None) -> str:
    """Return a value to check with; what only the worker knows is taken for a number."""
    return _ANY_VALUE if value is None or value.startswith("${") else value


def _without_host_logs(data: dict[str, Any]) -> dict[str, Any]:
    """Return the tables without the mounts of the host's log folders in the agent's service."""
    main = data["services"][MAIN_SERVICE]
    volumes = main.get("volumes", [])
    if isinstance(volumes, list):
        volumes = [mount for mount in volumes if not _is_of_host_logs(mount)]
    return {**data, "services": {**data["services"], MAIN_SERVICE: {**main, "volumes": volumes}}}


def _is_of_host_logs(mount: Any) -> bool:
    source = mount.get("source") if isinstance(mount, dict) else mount
    return isinstance(source, str) and source.startswith(f"{_HOST_LOGS}/")


def _broken_references(folder: Path, compose: Compose) -> Iterator[tuple[KeyPath, str]]:
    order = {name: place for place, name in enumerate(compose.order)}
    for name, service in compose.services.items():
        path: KeyPath = ("services", name)
        if name != MAIN_SERVICE and service.image is None and service.build is None:
            yield path, "has neither an image nor a build"
        if service.build is not None and not _is_inside(folder, service.build.context, kind="folder"):
            yield (*path, "build"), f"no folder {service.build.context!r} below the task"
        yield from ((path, reason) for reason in _broken_needs(name, service, compose, order))
        for network in service.networks:
            if network not in compose.networks and network != "default":
                yield (*path, "networks"), f"no network {network!r} is declared"
        for file in service.env_file:
            if not _is_inside(folder, file, kind="file"):
                yield (*path, "env_file"), f"no file {file!r} below the task"
        for mount in service.volumes:
            if reason := _broken_mount(folder, name, mount, compose):
                yield (*path, "volumes"), reason


def _broken_needs(name: str, service: Service, compose: Compose, order: Mapping[str, int]) -> Iterator[str]:
    for other, dependency in service.depends_on.items():
        if other not in compose.services and dependency.required:
            yield f"depends on {other!r}, which is no service"
        elif order.get(other, -1) >= order[name]:
            yield f"depends on {other!r}, which waits for {name!r}"


def _broken_mount(folder: Path, service: str, mount: Mount, compose: Compose) -> str:
    if mount.type == "volume":
        is_known = not mount.source or mount.source in compose.volumes
        return "" if is_known else f"no volume {mount.source!r} is declared"
    if mount.type == "tmpfs":
        return ""
    if not _is_inside(folder, mount.source):
        return f"{mount.source!r} is not in the task folder, and nothing else of a worker's host is given to a task"
    top = posixpath.normpath(posixpath.join("environment", mount.source)).split("/")[0]
    if service == MAIN_SERVICE and top in (".", *_HIDDEN):
        return f"{mount.source!r} would show the agent the tests or the solution"
    return ""


def _is_inside(folder: Path, path: str, *, kind: str = "") -> bool:
    """Return whether a path, read from environment/, names something of the task."""
    reached = posixpath.normpath(posixpath.join("environment", path))
    if path.startswith(("/", "~")) or reached.split("/")[0] == "..":
        return False
    check = {"folder": os.path.isdir, "file": os.path.isfile}.get(kind, os.path.exists)
    return check(os.path.join(folder, reached))
