"""Read environment manifests: of a task, and for a run by path, by `name@version` or as a table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchflow_client.errors import JobSpecError
from benchflow_client.schema.manifest import Manifest
from benchflow_client.schema.task import Artifact, Task
from benchflow_client.tasks.config import validate
from benchflow_client.tasks.findings import Findings
from benchflow_client.tasks.raw import KeyPath, NotPlainError, Raw, plain
from benchflow_client.tasks.text import CONFIG_LIMIT_BYTES, read_text
from benchflow_client.tasks.toml_file import parse_toml
from benchflow_client.tasks.yaml_text import parse_yaml

__all__ = [
    "MANIFEST_NAMES",
    "has_own_image",
    "manifest_reasons",
    "manifest_text",
    "read_manifest",
    "with_manifest",
]

MANIFEST_NAMES: Final = ("environment.toml", "environment.yaml", "environment.yml")
"""Where a task's manifest stands; the first one that is there is read."""

STATE_DIR: Final = "state"
"""Folder below a trial's artifacts for the files of services' state."""

_TOP: Final = "environment"
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._-]*)?")
_IN_DOCUMENT: Final = ("benchflow", "environment", "manifest")


def read_manifest(folder: Path, document: dict[str, Any], findings: Findings) -> Manifest | None:
    """Return a task's manifest, or None where it has none or a problem was added.

    Args:
        folder: The task folder.
        document: What only task.md has; `benchflow.environment.manifest` is a table or a file's name.
        findings: Gets the problems.
    """
    declared = _declared(document)
    if isinstance(declared, dict):
        return _validated(Raw("task.md", {_TOP: declared}, dict, {}), findings)
    if isinstance(declared, str) and _is_version(declared):
        return None  # `manifest_reasons` says so
    if isinstance(declared, str):
        place = os.path.normpath(declared)
        if place.startswith((os.pardir, os.sep)):
            findings.problem(f"task.md: {'.'.join(_IN_DOCUMENT)}: {declared!r} is not in the task folder")
            return None
        return _read_file(folder, place, findings)
    there = next((name for name in MANIFEST_NAMES if os.path.lexists(folder / name)), None)
    return None if there is None else _read_file(folder, there, findings)


def manifest_text(value: str, registry: Path | None) -> str:
    """Return the manifest a run asks for as the text that travels with the job.

    Args:
        value: JSON of a table, path of a file, or `name@version`.
        registry: Folder of `<name>@<version>.toml` (or `.yaml`) files; None = there is none.

    Raises:
        JobSpecError: It cannot be found or read; lists every problem.
    """
    findings = Findings()
    if value.lstrip().startswith("{"):
        manifest = _validated(Raw("environment_manifest", _json(value), dict, {}), findings)
    else:
        file = _find(value, registry)
        manifest = _read_file(file.parent, file.name, findings)
    if manifest is None:
        raise JobSpecError(
            f"environment_manifest {value[:80]!r} cannot be used: {'; '.join(findings.problems)}",
            hint="Correct it; docs/services.md lists its keys.",
        )
    return manifest.model_dump_json(exclude_defaults=True)


def with_manifest(task: Task, asked: str | None) -> Task:
    """Return a task as its services need it: image, variable of its name, files of state kept.

    Args:
        task: The task.
        asked: Manifest of the job, as `manifest_text` returned it; wins over the task's own.
    """
    manifest = task.manifest if asked is None else Manifest.model_validate_json(asked)
    if manifest is None:
        return task
    config, selection = task.config, manifest.task_selection
    sandbox = config.sandbox
    changes: dict[str, Any] = {"docker_image": manifest.image} if manifest.image is not None else {}
    if selection.mechanism == "env_var":
        changes["env"] = {**sandbox.env, selection.key: task.name}
    artifacts = (*config.artifacts, *_of_state(manifest))
    config = config.model_copy(update={"sandbox": sandbox.model_copy(update=changes), "artifacts": artifacts})
    return task.model_copy(update={"config": config, "manifest": manifest})


def manifest_reasons(task: Task, *, runs_images: bool) -> Iterator[tuple[str, str]]:
    """Yield why a task's services cannot be run as its manifest says.

    Args:
        task: The task.
        runs_images: The sandbox starts an image as it is, with its entry point.
    """
    declared = _declared(task.document)
    if isinstance(declared, str) and task.manifest is None:
        yield (
            ".".join(_IN_DOCUMENT),
            f"versions are looked up for a run: --environment-manifest {declared}",
        )
    manifest = task.manifest
    if manifest is None:
        return
    if manifest.isolation == "persistent":
        yield "environment.isolation", "every trial has services of its own; only per_task is run"
    if not manifest.keep_alive:
        yield "environment.keep_alive", "services run until the trial ends"
    if manifest.has_own_entrypoint and not runs_images:
        yield (
            "environment.owns_lifecycle",
            "this sandbox does not run the entry point of an image; declare the services it starts",
        )


def has_own_image(manifest: Manifest | None) -> bool:
    """Return whether a manifest says itself what the sandbox is made from."""
    return manifest is not None and manifest.image is not None


def _declared(document: dict[str, Any]) -> Any:
    found: Any = document
    for key in _IN_DOCUMENT:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _is_version(value: str) -> bool:
    return "@" in value and _REFERENCE.fullmatch(value) is not None


def _of_state(manifest: Manifest) -> Iterator[Artifact]:
    """Yield the files of the services' state; what SQLite has not yet put into one stands beside it."""
    for path in () if manifest.state is None else manifest.state.paths:
        for source in (path, f"{path}-wal"):
            yield Artifact(source=source, destination=f"{STATE_DIR}/{source.lstrip('/')}")


def _find(value: str, registry: Path | None) -> Path:
    path = Path(value).expanduser()
    if path.is_file():
        return path
    if not _REFERENCE.fullmatch(value):
        raise JobSpecError(
            f"environment_manifest {value!r} is no file and no name@version.",
            hint="Give the path of an environment.toml, or a name of the folder BENCHFLOW_ENV_REGISTRY.",
        )
    if registry is None:
        raise JobSpecError(
            f"environment_manifest {value!r} is no file, and there is no registry to look it up in.",
            hint="Set BENCHFLOW_ENV_REGISTRY to a folder of NAME@VERSION.toml files.",
        )
    found = [file for ending in ("toml", "yaml", "yml") if (file := registry / f"{value}.{ending}").is_file()]
    if not found:
        known = sorted(
            file.stem for file in registry.glob("*.*") if file.suffix in {".toml", ".yaml", ".yml"}
        )
        raise JobSpecError(
            f"environment_manifest {value!r} is not in the registry {registry}; "
            f"it has {', '.join(known[:10]) or 'none'}.",
            hint="Name one of them, or add the file.",
        )
    return found[0]


def _read_file(folder: Path, name: str, findings: Findings) -> Manifest | None:
    text = read_text(folder, name, findings, limit_bytes=CONFIG_LIMIT_BYTES)
    if text is None:
        return None
    raw = (
        parse_toml(text, name, findings)
        if name.endswith(".toml")
        else parse_yaml(text, name, findings, first_line=1)
    )
    return None if raw is None else _validated(raw, findings)


def _validated(raw: Raw, findings: Findings) -> Manifest | None:
    """Return the manifest of a file: its table `environment`, or all of it where there is none."""
    table = raw.data.get(_TOP)
    if not isinstance(table, dict):
        return validate(Manifest, raw, findings)
    for key in raw.data.keys() - {_TOP}:
        findings.problem(raw.says((key,), f"unknown key; a manifest has the table {_TOP!r} only"))
    below: dict[KeyPath, KeyPath] = {(key,): (_TOP, key) for key in table}
    return validate(Manifest, Raw(raw.file, table, raw.find_lines, below), findings)


def _json(value: str) -> dict[str, Any]:
    try:
        data = plain(json.loads(value))
    except (ValueError, RecursionError, NotPlainError) as error:
        raise JobSpecError(
            f"environment_manifest is no JSON: {error}.", hint="Give a table, a path, or name@version."
        ) from error
    return data if isinstance(data, dict) else {}
