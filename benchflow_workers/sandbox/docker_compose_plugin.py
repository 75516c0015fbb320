"""Containers of services whose compose keys only the docker compose plugin reads.

The plugin only creates the container, from a project of one service that is made here: image,
networks and volumes are there already, names and labels are the trial's. So what the plugin
made is started, listed and removed as everything else of the trial.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_http import EngineHttp, Request
from benchflow_workers.sandbox.docker_plugins import DockerPlugins
from benchflow_workers.sandbox.docker_sandbox import remove_container
from benchflow_workers.sandbox.finishing import finish

__all__ = ["COMPOSE", "Wanted", "check_plugin", "create_by_plugin", "project"]

COMPOSE: Final = "compose"
"""Name of the plugin."""

_SERVICE: Final = "service"
_BODY_KEYS: Final = frozenset({
    "Cmd", "Entrypoint", "Env", "Healthcheck", "HostConfig", "Hostname", "Image", "Labels",
    "NetworkingConfig", "StopSignal", "User", "WorkingDir",
})  # fmt: skip
_HOST_KEYS: Final = frozenset({
    "CapAdd", "CapDrop", "CpuPeriod", "CpuQuota", "Dns", "DnsOptions", "ExtraHosts", "Init", "LogConfig",
    "Memory", "MemorySwap", "Mounts", "NetworkMode", "PidsLimit", "ReadonlyRootfs", "RestartPolicy",
    "ShmSize", "Tmpfs", "Ulimits",
})  # fmt: skip
_TIMEOUT_S: Final = 120.0
_SHOWN_LINES: Final = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """A container to create.

    Attributes:
        name: Its name, unique in the engine.
        body: The engine's description of it.
        extra: Compose keys on top, which the engine's description does not have.
        project: Name of the project the plugin is told.
    """

    name: str
    body: Mapping[str, Any]
    extra: Mapping[str, Any]
    project: str


async def check_plugin(plugins: DockerPlugins, sandbox: str, needs: Sequence[str]) -> None:
    """Make sure that the plugin is there where a task needs it.

    Raises:
        SandboxError: `task.unsupported`, with file, line and key of what needs it.
    """
    if needs and not await plugins.has(COMPOSE):
        raise SandboxError(
            "task.unsupported",
            f"Sandbox {sandbox!r} cannot be opened on this host: {'; '.join(needs)}.",
            hint="Install the plugin (package docker-compose-plugin, or docker-compose 2), or leave the keys out.",
        )


async def create_by_plugin(plugins: DockerPlugins, http: EngineHttp, wanted: Wanted) -> str:
    """Create a container and return its id; what was half made is removed when this raises or is cancelled.

    Raises:
        SandboxError: `sandbox.start_failed`, with what the plugin said.
        EngineError: The engine does not find what was made.
    """
    said: list[str] = []
    words = [
        *("--host", str(http.endpoint), COMPOSE, "--env-file", "/dev/null", "--file", "-"),
        *("--project-name", wanted.project, "create", "--no-build", "--no-recreate", "--pull", "never"),
    ]
    try:
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(project(wanted)).encode())
            file.seek(0)
            async with asyncio.timeout(_TIMEOUT_S):
                code = await plugins.run(words, said.append, stdin=file)
        if code != 0:
            raise _failed(wanted, "\n".join(said[-_SHOWN_LINES:]))
        found = await http.call(Request("GET", f"/containers/{wanted.name}/json"))
    except BaseException as error:
        await finish(remove_container(http, wanted.name))
        if isinstance(error, OSError):
            raise _failed(wanted, str(error)) from error
        raise
    return str(found["Id"])


def project(wanted: Wanted) -> dict[str, Any]:
    """Return a compose project of one service whose container is as the engine's description says."""
    body, host = wanted.body, wanted.body.get("HostConfig", {})
    _check_told(wanted, host)
    networks = _networks(body, host)
    mounts = host.get("Mounts", ())
    volumes = [item["Source"] for item in mounts if item.get("Source")]
    service = {
        **_container(body),
        **_limits(host),
        "container_name": wanted.name,
        "volumes": [_mount(item) for item in mounts],
        **({"networks": networks} if networks is not None else {"network_mode": host["NetworkMode"]}),
    }
    plain = {key: value for key, value in service.items() if value not in (None, [], {}, "")}
    told: dict[str, Any] = _literal({
        "services": {_SERVICE: {**plain, **wanted.extra}},
        "networks": {name: {"name": name, "external": True} for name in networks or ()},
        "volumes": {name: {"name": name, "external": True} for name in volumes},
    })
    return told


def _check_told(wanted: Wanted, host: Mapping[str, Any]) -> None:
    """Refuse what the plugin would not be told, rather than lose it."""
    lost = sorted(
        [key for key, value in host.items() if key not in _HOST_KEYS and value]
        + [key for key, value in wanted.body.items() if key not in _BODY_KEYS and value]
    )
    if lost:
        raise SandboxError(
            "task.unsupported",
            f"{', '.join(wanted.extra)} of {wanted.name!r} need the compose plugin, "
            f"which is not told of {', '.join(lost)}.",
            hint="Leave one of the two out of the task.",
        )


def _container(body: Mapping[str, Any]) -> dict[str, Any]:
    health = body.get("Healthcheck")
    return {
        "image": body["Image"],
        "entrypoint": body.get("Entrypoint"),
        "command": body.get("Cmd"),
        "user": body.get("User"),
        "environment": body.get("Env"),
        "labels": body.get("Labels"),
        "working_dir": body.get("WorkingDir"),
        "hostname": body.get("Hostname"),
        "stop_signal": body.get("StopSignal"),
        "healthcheck": None if health is None else _health(health),
    }


def _health(check: Mapping[str, Any]) -> dict[str, Any]:
    if check["Test"] == ["NONE"]:
        return {"disable": True}
    times = {"interval": "Interval", "timeout": "Timeout", "start_period": "StartPeriod"}
    return {
        "test": check["Test"],
        "retries": check["Retries"],
        **{key: f"{check[name] // 1_000_000}ms" for key, name in times.items() if check.get(name)},
    }


def _limits(host: Mapping[str, Any]) -> dict[str, Any]:
    logs, restart = host.get("LogConfig", {}), host.get("RestartPolicy", {})
    retries = restart.get("MaximumRetryCount")
    return {
        "init": host.get("Init"),
        "cap_add": host.get("CapAdd"),
        "cap_drop": host.get("CapDrop"),
        "cpu_period": host.get("CpuPeriod") or None,
        "cpu_quota": host.get("CpuQuota") or None,
        "dns": host.get("Dns"),
        "dns_opt": host.get("DnsOptions"),
        "extra_hosts": host.get("ExtraHosts"),
        "logging": {"driver": logs["Type"], "options": logs["Config"]} if logs else None,
        "mem_limit": host.get("Memory") or None,
        "memswap_limit": host.get("MemorySwap") or None,
        "pids_limit": host.get("PidsLimit"),
        "read_only": host.get("ReadonlyRootfs") or None,
        "restart": f"{restart['Name']}:{retries}" if retries else restart.get("Name"),
        "shm_size": host.get("ShmSize"),
        "tmpfs": [
            f"{path}:{options}" if options else path for path, options in host.get("Tmpfs", {}).items()
        ],
        "ulimits": {
            item["Name"]: {"soft": item["Soft"], "hard": item["Hard"]} for item in host.get("Ulimits", ())
        },
    }


def _networks(body: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the network the container starts on; None = it has none of the trial's."""
    endpoints = body.get("NetworkingConfig", {}).get("EndpointsConfig", {})
    if host.get("NetworkMode") not in endpoints:
        return None
    return {name: {"aliases": table.get("Aliases", [])} for name, table in endpoints.items()}


def _mount(mount: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"type": mount["Type"], "target": mount["Target"]}
    if mount.get("Source"):
        told["source"] = mount["Source"]
    if mount.get("ReadOnly"):
        told["read_only"] = True
    if mount.get("VolumeOptions", {}).get("NoCopy"):
        told["volume"] = {"nocopy": True}
    return told


def _literal(value: Any) -> Any:
    """Return data in which the plugin finds no variable to fill in."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _failed(wanted: Wanted, said: str) -> SandboxError:
    return SandboxError(
        "sandbox.start_failed",
        f"The compose plugin did not create {wanted.name!r} ({', '.join(wanted.extra)}).\n{said}",
        hint="See environment/docker-compose.yaml of the task; the engine may not know a value.",
    )
