"""What the compose file of a Terminal-Bench 0.x task says about the machine its agent works in.

Most such files only start one container for the harness of their time; these become
a Dockerfile or an image, with variables. What says more stays a compose file, in
which the agent's service has the name every sandbox gives it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchflow_client.tasks.findings import Findings
from benchflow_client.tasks.raw import Raw
from benchflow_client.tasks.text import CONFIG_LIMIT_BYTES, read_text
from benchflow_client.tasks.yaml_text import parse_yaml

OLD_COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml")
"""Names of the file."""

_OLD_MAIN, _MAIN = "client", "main"
_HARNESS = re.compile(r"\$\{?T_BENCH_")
"""A variable that the harness of that time set; what holds one was its business."""

_WITHOUT_MEANING = frozenset({"container_name", "stdin_open", "tty", "init", "restart"})
"""Keys that only keep the container alive or name it."""

_IDLE = re.compile(r"(exec )?(sleep (infinity|inf|\d+)|tail -f /dev/null|(/bin/)?(ba)?sh)")
_TEMPLATE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^${}]*)?\}")


@dataclass(frozen=True, slots=True)
class OldMachine:
    """The machine of an old task.

    Attributes:
        image: Ready image; None = it is built.
        context: Build context below the task folder; `.` is the folder itself.
        dockerfile: Dockerfile below the context.
        env: Variables.
        workdir: Workspace; None = the image's.
        compose: Text of the compose file that is still needed; None = there is no more to say.
    """

    image: str | None = None
    context: str = "."
    dockerfile: str = "Dockerfile"
    env: dict[str, str] = field(default_factory=dict)
    workdir: str | None = None
    compose: str | None = None


def read_old_machine(folder: Path, findings: Findings) -> OldMachine | None:
    """Return the machine an old task describes, or None when a problem was added."""
    file = next((name for name in OLD_COMPOSE_FILES if (folder / name).is_file()), None)
    if file is None:
        return OldMachine()
    text = read_text(folder, file, findings, limit_bytes=CONFIG_LIMIT_BYTES)
    raw = None if text is None else parse_yaml(text, file, findings, first_line=1)
    return None if raw is None else _Reader(raw, findings).machine()


class _Reader:
    """Reads one compose file; what has been understood is taken out of the service."""

    def __init__(self, raw: Raw, findings: Findings) -> None:
        self._raw = raw
        self._findings = findings

    def machine(self) -> OldMachine | None:
        """Return the machine, or None when a problem was added."""
        services = self._raw.data.get("services")
        name = _main_service(services)
        if not isinstance(services, dict) or name is None:
            reason = "expected a service 'client' (or a single one), in which the agent works"
            self._findings.problem(self._raw.says(("services",), reason))
            return None
        others = {key: value for key, value in services.items() if key != name}
        service = {key: value for key, value in services[name].items() if key not in _WITHOUT_MEANING}
        context, dockerfile = self._take_build(service, name, has_others=bool(others))
        image = self._take_image(service, is_built=bool(services[name].get("build")))
        _drop_harness_parts(service)
        env = _take_env(service)
        workdir = service.pop("working_dir", None)
        if not _is_absolute(workdir):
            service |= {"working_dir": workdir}
            workdir = None
        if self._findings.problems:
            return None
        compose = self._compose(name, service, others) if others or service else None
        return OldMachine(image, context, dockerfile, env, workdir, compose)

    def _take_build(self, service: dict[str, Any], name: str, *, has_others: bool) -> tuple[str, str]:
        """Take a build that needs no compose out of the service and return its context and Dockerfile."""
        build = service.get("build", ".")
        build = {"context": build} if isinstance(build, str) else build
        if not isinstance(build, dict):
            self._findings.problem(self._raw.says(("services", name, "build"), "expected a path or a table"))
            return ".", "Dockerfile"
        context, dockerfile = build.get("context", "."), build.get("dockerfile", "Dockerfile")
        for key, value in (("context", context), ("dockerfile", dockerfile)):
            if not _stays_below(value):
                reason = "expected a path below the task folder"
                self._findings.problem(self._raw.says(("services", name, "build", key), reason, value))
                return ".", "Dockerfile"
        parts = [part for part in context.split("/") if part not in {"", "."}]
        is_simple = not set(build) - {"context", "dockerfile"} and not (has_others and parts)
        if is_simple:
            service.pop("build", None)
            return "/".join(parts) or ".", dockerfile.removeprefix("./")
        return ".", "Dockerfile"

    @staticmethod
    def _take_image(service: dict[str, Any], *, is_built: bool) -> str | None:
        """Take the image out of the service; the name of one that is built says nothing."""
        image = service.pop("image", None)
        if is_built or not isinstance(image, str) or _HARNESS.search(image):
            return None
        return image

    def _compose(self, name: str, service: dict[str, Any], others: dict[str, Any]) -> str:
        """Return the compose file of the converted task."""
        if name != _MAIN and _MAIN in others:
            self._findings.problem(
                self._raw.says(("services", _MAIN), "the name is that of the agent's service")
            )
        services = {_MAIN: service, **others}
        for other in others.values():
            if isinstance(other, dict):
                _rename_references(other, name)
        top = {key: value for key, value in self._raw.data.items() if key not in {"services", "version"}}
        text = yaml.safe_dump({"services": services, **top}, sort_keys=False, allow_unicode=True)
        if found := _HARNESS.search(text):
            line = next(line.strip() for line in text.split("\n") if _HARNESS.search(line))
            self._findings.problem(
                f"{self._raw.file}: {line!r} needs {found[0].lstrip('${')}…, which only the harness of that "
                "time set; write the value"
            )
        return text


def _main_service(services: Any) -> str | None:
    """Return the service the agent works in."""
    if not isinstance(services, dict):
        return None
    tables = [name for name, value in services.items() if isinstance(value, dict)]
    name = _OLD_MAIN if _OLD_MAIN in tables else _MAIN if _MAIN in tables else None
    return name or (tables[0] if len(services) == len(tables) == 1 else None)


def _is_absolute(workdir: Any) -> bool:
    return workdir is None or (isinstance(workdir, str) and workdir.startswith("/") and "$" not in workdir)


def _stays_below(path: Any) -> bool:
    is_path = isinstance(path, str) and bool(path) and "$" not in path and "://" not in path
    return is_path and not path.startswith("/") and ".." not in path.split("/")


def _drop_harness_parts(service: dict[str, Any]) -> None:
    """Take out what only served the old harness: its mounts, and a command that waits."""
    volumes = service.get("volumes")
    if isinstance(volumes, list):
        kept = [item for item in volumes if not _HARNESS.search(str(item))]
        service.pop("volumes")
        service |= {"volumes": kept} if kept else {}
    command = service.get("command")
    words = command if isinstance(command, list) else [command]
    if _IDLE.fullmatch(str(words[-1]) if len(words) in {1, 3} else " ".join(map(str, words))):
        service.pop("command")


def _take_env(service: dict[str, Any]) -> dict[str, str]:
    """Take the variables out of the service, where all of them mean the same without compose."""
    given = service.get("environment", {})
    if isinstance(given, list):
        given = dict(
            str(item).partition("=")[::2] if "=" in str(item) else (str(item), None) for item in given
        )
    if not isinstance(given, dict):
        return {}
    kept = {key: value for key, value in given.items() if not _HARNESS.search(str(value))}
    texts = {key: _text(value) for key, value in kept.items()}
    if not all(
        text is not None and ("$" not in text or _TEMPLATE.fullmatch(text)) for text in texts.values()
    ):
        service["environment"] = kept
        return {}
    service.pop("environment", None)
    return {key: text for key, text in texts.items() if text is not None}


def _text(value: Any) -> str | None:
    """Return a variable's value as text; None = it has none of its own."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _rename_references(service: dict[str, Any], old: str) -> None:
    """Let a side service refer to the agent's service by its new name."""
    depends = service.get("depends_on")
    if isinstance(depends, list):
        service["depends_on"] = [_MAIN if name == old else name for name in depends]
    elif isinstance(depends, dict):
        service["depends_on"] = {(_MAIN if name == old else name): value for name, value in depends.items()}
    for key in ("network_mode", "ipc", "pid"):
        if service.get(key) == f"service:{old}":
            service[key] = f"service:{_MAIN}"
