"""The engine's descriptions of a task's services, from the task's compose file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchflow_client.schema.compose import HealthCheck, Service

NO_NAME_SERVER: Final = "127.0.0.1"
"""Whom services without a network ask for names that are none of their own: nobody listens there."""

_SHORT_WAIT: Final = ("timeout:1", "attempts:1")
CPU_PERIOD_US: Final = 100_000

_LOGS: Final = {"Type": "json-file", "Config": {"max-size": "4m", "max-file": "1"}}
_IDLE: Final = re.compile(r"(exec )?(sleep (infinity|inf|\d+)|tail -f /dev/null|(/bin/|/usr/bin/)?(ba)?sh)")
_SHELLS: Final = frozenset({"sh", "bash", "/bin/sh", "/bin/bash"})


def side_body(
    service: Service, *, image: str, env: Mapping[str, str], labels: Mapping[str, str], pids: int
) -> dict[str, Any]:
    """Return a side service's container, without its network and its mounts."""
    memory = service.mem_limit or 0
    quota = int((service.cpus or 0) * CPU_PERIOD_US)
    policy, _, retries = service.restart.partition(":")
    body: dict[str, Any] = {
        "Image": image,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Labels": dict(labels),
        "HostConfig": {
            "CpuPeriod": CPU_PERIOD_US if quota else 0,
            "CpuQuota": max(quota, 1000) if quota else 0,
            "Memory": memory,
            "MemorySwap": memory,
            "PidsLimit": service.pids_limit or pids,
            "LogConfig": _LOGS,
            "ReadonlyRootfs": service.read_only,
            "RestartPolicy": {"Name": policy, "MaximumRetryCount": int(retries or 0)},
        },
    }
    given = {"Entrypoint": service.entrypoint, "Cmd": service.command}
    body |= {key: list(words) for key, words in given.items() if words is not None}
    body |= {"WorkingDir": service.working_dir} if service.working_dir else {}
    body |= {"User": service.user} if service.user else {}
    return merged(body, common_body(service))


def main_body(service: Service) -> dict[str, Any]:
    """Return what the file changes in the agent's container, without its network and its mounts.

    A command that only keeps the container alive is left to the sandbox's own.
    """
    body = common_body(service)
    if not _is_idle(service):
        body["Entrypoint"] = None if service.entrypoint is None else list(service.entrypoint)
        body["Cmd"] = list(service.command or ())
        body |= {"User": service.user} if service.user else {}
    return body


def common_body(service: Service) -> dict[str, Any]:
    """Return what is described alike for the agent's service and the others."""
    host: dict[str, Any] = {
        "Init": service.init,
        "CapAdd": list(service.cap_add),
        "CapDrop": list(service.cap_drop),
        "ExtraHosts": [f"{name}:{address}" for name, address in service.extra_hosts.items()],
        "Tmpfs": {path: options for path, _, options in (item.partition(":") for item in service.tmpfs)},
    }
    if service.shm_size:
        host["ShmSize"] = service.shm_size
    if service.ulimits:
        host["Ulimits"] = [
            {"Name": name, "Soft": limit.soft, "Hard": limit.hard} for name, limit in service.ulimits.items()
        ]
    body: dict[str, Any] = {"HostConfig": host}
    if service.healthcheck is not None:
        body["Healthcheck"] = _health(service.healthcheck)
    body |= {"Hostname": service.hostname} if service.hostname else {}
    body |= {"StopSignal": service.stop_signal} if service.stop_signal else {}
    return body


def merged(body: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with changes; limits and mounts are added to those that are there."""
    host, other = dict(body.get("HostConfig", {})), dict(changes.get("HostConfig", {}))
    limits = [*host.get("Ulimits", ()), *other.get("Ulimits", ())]
    dropped = [*host.get("CapDrop", ()), *other.get("CapDrop", ())]
    mounts = [*host.get("Mounts", ()), *other.get("Mounts", ())]
    host |= other | {"CapDrop": dropped, "Mounts": mounts} | ({"Ulimits": limits} if limits else {})
    return {**body, **changes, "HostConfig": host}


def attached(networks: Mapping[str, Iterable[str]], *, name_servers: Sequence[str] | None) -> dict[str, Any]:
    """Return a container's first network with its names there; the engine takes one at creation.

    Args:
        networks: The names of the service on each network, by the network's id; none = no network at all.
        name_servers: Whom the engine asks for names that are none of the services', where what is
            reached outside is restricted; packets cannot be made by hand then. None = it is not.
    """
    if not networks:
        return {"HostConfig": {"NetworkMode": "none"}}
    first = next(iter(networks))
    host: dict[str, Any] = {"NetworkMode": first}
    if name_servers is not None:
        host |= {"Dns": list(name_servers), "CapDrop": ["NET_RAW"]}
        host |= {"DnsOptions": list(_SHORT_WAIT)} if NO_NAME_SERVER in name_servers else {}
    return {
        "HostConfig": host,
        "NetworkingConfig": {"EndpointsConfig": {first: {"Aliases": list(networks[first])}}},
    }


def _health(check: HealthCheck) -> dict[str, Any]:
    if check.disable or check.test == ("NONE",):
        return {"Test": ["NONE"]}
    return {
        "Test": list(check.test),
        "Interval": int(check.interval * 1e9),
        "Timeout": int(check.timeout * 1e9),
        "Retries": check.retries,
        "StartPeriod": int(check.start_period * 1e9),
    }


def _is_idle(service: Service) -> bool:
    words = (*(service.entrypoint or ()), *(service.command or ()))
    if len(words) == 3 and words[0] in _SHELLS and words[1] in {"-c", "-lc"}:
        return _IDLE.fullmatch(words[2].strip()) is not None
    return not words or _IDLE.fullmatch(" ".join(words)) is not None
