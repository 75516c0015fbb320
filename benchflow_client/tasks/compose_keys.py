"""Which keys of a compose file are run, which mean nothing in a sandbox, and which are refused."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, Final

from benchflow_client.schema.compose import Attachment, Build, Mount, Network, Service
from benchflow_client.tasks.raw import KeyPath, Raw

NOT_RUN: Final = "is not run by this version"
"""Why most other keys are refused."""

_NEEDS_PLUGIN: Final = "needs the docker compose plugin on the worker's host"
_BY_PLUGIN: Final = frozenset({
    "cpu_shares", "cpuset", "dns_search", "domainname", "group_add", "mac_address", "mem_reservation",
    "mem_swappiness", "memswap_limit", "storage_opt", "sysctls",
})  # fmt: skip
"""Keys of a container that the compose plugin reads; none reaches beyond the container."""

_REACHES_HOST: Final = "would give the task the worker's host; no sandbox does that"

_WITHOUT_MEANING: Final = frozenset({
    "annotations", "attach", "expose", "labels", "logging", "ports", "profiles", "pull_policy",
    "stdin_open", "stop_grace_period", "tty",
})  # fmt: skip
"""Services reach each other's ports anyway, and none is published on the worker's host."""

_OF_HOST: Final = frozenset({
    "cgroup", "cgroup_parent", "device_cgroup_rules", "devices", "ipc", "pid", "privileged",
    "runtime", "security_opt", "use_api_socket", "userns_mode", "uts",
})  # fmt: skip

_FILES: Final = {"configs": "/", "secrets": "/run/secrets"}
"""Keys that place files of the task in a service, and the folder they go to where none is said."""

_PLATFORMS: Final = frozenset({"linux", "linux/amd64", "linux/x86_64"})
_BUILD_WITHOUT_MEANING: Final = frozenset({"cache_from", "cache_to", "labels", "no_cache", "pull", "tags"})
_LIMITS: Final = {"cpus": "cpus", "memory": "mem_limit", "pids": "pids_limit"}
_DEPLOY_WITHOUT_MEANING: Final = frozenset({
    "endpoint_mode",
    "labels",
    "mode",
    "restart_policy",
    "update_config",
})
_MOUNT_OPTIONS: Final = frozenset({"bind", "consistency", "tmpfs", "volume"})
_NETWORK_WITHOUT_MEANING: Final = frozenset({"attachable", "labels", "name"})
_VOLUME_WITHOUT_MEANING: Final = frozenset({"labels", "name"})
_OFF: Final[tuple[Any, ...]] = (None, False, "false", [], {}, "")


class ServiceReader:
    """Reads one service; what is refused is added to a list, a line each.

    Attributes:
        by_plugin: The keys that only the compose plugin runs.
        needs: Why each of them needs it, a line each.
    """

    def __init__(self, raw: Raw, name: str, table: dict[str, Any], refused: list[str]) -> None:
        self.by_plugin: dict[str, Any] = {}
        self.needs: list[str] = []
        self._raw = raw
        self._path: KeyPath = ("services", name)
        self._table = table
        self._refused = refused

    def kept(self) -> dict[str, Any]:
        """Return the keys that are run, as the schema names them."""
        kept: dict[str, Any] = {}
        for key, value in self._table.items():
            if value is None or key in _WITHOUT_MEANING or key in _FILES or key.startswith("x-"):
                continue
            special = getattr(self, f"_{key}", None) if key in self._SPECIAL else None
            if special is not None:
                kept |= special(value)
            elif key in Service.model_fields:
                kept[key] = value
            elif key in _BY_PLUGIN:
                self.by_plugin[key] = value
                self.needs.append(self._raw.says((*self._path, key), _NEEDS_PLUGIN))
            elif value not in _OFF:
                self._refuse((key,), _REACHES_HOST if key in _OF_HOST else NOT_RUN)
        if files := list(self._files()):
            kept["volumes"] = [*kept.get("volumes", ()), *files]
        return kept

    def _files(self) -> Iterator[dict[str, Any]]:
        """Yield configs and secrets as the mounts of single files that they are."""
        for kind, folder in _FILES.items():
            declared, given = self._raw.data.get(kind), self._table.get(kind)
            for index, item in enumerate(given if isinstance(given, list) else ()):
                name, target = (
                    (item.get("source"), item.get("target")) if isinstance(item, dict) else (item, None)
                )
                table = declared.get(name) if isinstance(declared, dict) and isinstance(name, str) else None
                file = table.get("file") if isinstance(table, dict) else None
                if not isinstance(file, str):
                    self._refuse((kind, index), f"only {kind} declared as a file of the task are placed")
                else:
                    place = posixpath.join(folder, str(target or name))
                    yield {"type": "bind", "source": file, "target": place, "read_only": True}

    _SPECIAL: Final = frozenset({
        "build", "deploy", "env_file", "network_mode", "networks", "platform", "scale", "volumes",
    })  # fmt: skip

    def _refuse(self, path: KeyPath, reason: str) -> None:
        self._refused.append(self._raw.says((*self._path, *path), reason))

    def _build(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {"build": value}
        return {"build": self._table_of(value, ("build",), set(Build.model_fields), _BUILD_WITHOUT_MEANING)}

    def _table_of(
        self, value: dict[str, Any], path: KeyPath, known: set[str], ignored: frozenset[str]
    ) -> dict[str, Any]:
        """Return the known keys of a table; those that say nothing are left out, others refused."""
        for key, item in value.items():
            if key not in known and key not in ignored and item not in _OFF:
                self._refuse((*path, key), NOT_RUN)
        return {key: item for key, item in value.items() if key in known and item is not None}

    def _deploy(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {"deploy": value}
        kept: dict[str, Any] = {}
        for key, item in value.items():
            if key == "resources" and isinstance(item, dict):
                kept |= self._resources(item)
            elif not (key in _DEPLOY_WITHOUT_MEANING or item in _OFF or (key == "replicas" and item == 1)):
                self._refuse(("deploy", key), NOT_RUN)
        return kept

    def _resources(self, value: dict[str, Any]) -> dict[str, Any]:
        reserved = value.get("reservations")
        if isinstance(reserved, dict) and reserved.get("devices"):
            self._refuse(("deploy", "resources", "reservations", "devices"), "no GPUs are given to services")
        limits = value.get("limits")
        limits = limits if isinstance(limits, dict) else {}
        return {_LIMITS[key]: item for key, item in limits.items() if key in _LIMITS and item is not None}

    def _env_file(self, value: Any) -> dict[str, Any]:
        items = value if isinstance(value, list) else [value]
        return {"env_file": [item.get("path") if isinstance(item, dict) else item for item in items]}

    def _network_mode(self, value: Any) -> dict[str, Any]:
        if value == "none":
            return {"network_mode": value}
        if value != "bridge":
            self._refuse(("network_mode",), _REACHES_HOST if value == "host" else NOT_RUN)
        return {}

    def _networks(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            return {"networks": value}
        known, ignored = set(Attachment.model_fields), frozenset({"priority", "gw_priority"})
        return {
            "networks": {
                name: self._table_of(item, ("networks", name), known, ignored)
                if isinstance(item, dict)
                else item
                for name, item in value.items()
            }
        }

    def _platform(self, value: Any) -> dict[str, Any]:
        if value not in tuple(_PLATFORMS):
            self._refuse(("platform",), NOT_RUN)
        return {}

    def _scale(self, value: Any) -> dict[str, Any]:
        if value != 1:
            self._refuse(("scale",), NOT_RUN)
        return {}

    def _volumes(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, list):
            return {"volumes": value}
        return {"volumes": [self._mount(item, index) for index, item in enumerate(value)]}

    def _mount(self, value: Any, index: int) -> Any:
        if not isinstance(value, dict):
            return value
        return self._table_of(value, ("volumes", index), set(Mount.model_fields), _MOUNT_OPTIONS)


def keep_networks(raw: Raw, refused: list[str]) -> Any:
    """Return the networks that are declared; those made elsewhere or of another kind are refused."""
    declared = raw.data.get("networks") or {}
    if not isinstance(declared, dict):
        return declared
    known = set(Network.model_fields)
    return {
        name: _declared(
            raw, ("networks", name), table, refused, rules=(known, _NETWORK_WITHOUT_MEANING, "bridge")
        )
        for name, table in declared.items()
    }


def keep_volumes(raw: Raw, refused: list[str]) -> Any:
    """Return the names of the volumes that are declared; those made elsewhere are refused."""
    declared = raw.data.get("volumes") or {}
    if not isinstance(declared, dict):
        return declared
    for name, table in declared.items():
        _declared(raw, ("volumes", name), table, refused, rules=(set(), _VOLUME_WITHOUT_MEANING, "local"))
    return list(declared)


def _declared(
    raw: Raw, path: KeyPath, table: Any, refused: list[str], *, rules: tuple[set[str], frozenset[str], str]
) -> Any:
    known, ignored, driver = rules
    if not isinstance(table, dict):
        return table or {}
    for key, value in table.items():
        is_fine = key in known or key in ignored or value in _OFF or (key == "driver" and value == driver)
        if not is_fine and not key.startswith("x-"):
            refused.append(raw.says((*path, key), NOT_RUN))
    return {key: value for key, value in table.items() if key in known and value is not None}
