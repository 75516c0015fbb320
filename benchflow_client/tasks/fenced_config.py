"""Turn the settings of a `toml task` block into those of task.toml.

Units become numbers and networks become modes. What cannot be kept is a problem
that names the key: a setting passed over in silence would change what a score means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from benchflow_client.tasks.findings import Findings
from benchflow_client.tasks.raw import KeyPath, Raw
from benchflow_client.tasks.spelling import mebibytes

Table = dict[str, Any]

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NETWORKS = {"none": "no-network", "open": "public"}
_AUTHOR = re.compile(r"(?P<name>[^<>]+?)\s*<(?P<email>[^<>]+)>")

_RECORDED = ("title", "runs", "credits", "provenance", "import", "variants", "training", "integrity")
"""Keys that say how to publish, repeat or train on a task: kept as data, without effect on a trial."""

_REASON = "is not run by this version, and leaving it out would change the task"


def fenced_config(raw: Raw, findings: Findings) -> Table:
    """Return the data of the task.toml that means the same; every setting that has none is a problem.

    Args:
        raw: The block; its data is used up.
        findings: Gets the problems.
    """
    return _Settings(raw, findings).converted()


def seconds(text: str) -> float | None:
    """Return what a time such as "90s", "15m" or "1h30m" means; None = it is no such time."""
    if not _DURATION.fullmatch(text.replace(" ", "")):
        return None
    amounts = _AMOUNT.findall(text.replace(" ", ""))
    return round(sum(float(number) * _SECONDS[unit] for number, unit in amounts), 3)


class _Settings:
    """Takes what is understood out of the data, and refuses what is left."""

    def __init__(self, raw: Raw, findings: Findings) -> None:
        self._raw = raw
        self._findings = findings

    def converted(self) -> Table:
        """Return the data of the task.toml."""
        data = self._raw.data
        package = {"name": data.pop("name", None), "authors": self._authors(data.pop("authors", []))}
        package |= {key: data.pop(key) for key in ("version", "description", "keywords") if key in data}
        recorded = {key: data.pop(key) for key in list(data) if key in _RECORDED or key.startswith("x-")}
        if "x-benchflow" in recorded:
            self._refuse(("x-benchflow",))
        about = data.pop("about", {})
        tables = {key: self._table(key) for key in ("agent", "sandbox", "verifier", "oracle")}
        sandbox = self._sandbox(tables["sandbox"], ("sandbox",))
        artifacts = self._outputs(tables["sandbox"].pop("outputs", []))
        result = {
            "schema_version": "1.3",
            "artifacts": artifacts,
            "task": package,
            "metadata": {**(about if isinstance(about, dict) else {"about": about}), "taskmd": recorded},
            "agent": self._agent(tables["agent"]),
            "verifier": self._verifier(tables["verifier"]),
            "environment": sandbox,
            "oracle": self._oracle(tables["oracle"]),
        }
        for key, table in tables.items():
            self._refuse_rest(table, (key,))
        self._refuse_rest(data, ())
        return result

    def _table(self, key: str) -> Table:
        table = self._raw.data.pop(key, {})
        if isinstance(table, dict):
            return table
        self._findings.problem(self._raw.says((key,), "expected a table", table))
        return {}

    def _refuse(self, path: KeyPath, reason: str = _REASON, value: Any = None) -> None:
        self._findings.problem(self._raw.says(path, reason, value))

    def _refuse_rest(self, table: Table, path: KeyPath) -> None:
        for key in table:
            self._refuse((*path, key))

    def _authors(self, authors: Any) -> Any:
        """Return authors as tables; each may be a table, a name, or `name <address>`."""
        if not isinstance(authors, list):
            return authors
        found = [
            (author, _AUTHOR.fullmatch(author) if isinstance(author, str) else None) for author in authors
        ]
        return [
            match.groupdict() if match else {"name": author} if isinstance(author, str) else author
            for author, match in found
        ]

    def _agent(self, table: Table) -> Table:
        self._expect(table, ("agent",), {"on_timeout": ("grade",), "timeout_basis": ("wall",)})
        table.pop("network_reason", None)
        result = self._times(table, ("agent",), {"timeout": "timeout_sec"})
        result |= {"user": table.pop("user", None)}
        return result | self._network(table, ("agent",))

    def _verifier(self, table: Table) -> Table:
        path: KeyPath = ("verifier",)
        self._expect(table, path, {"models": (False,), "feedback": ("none", False, "")})
        result = self._times(table, path, {"timeout": "timeout_sec"})
        result |= {key: table.pop(key) for key in ("user", "env") if key in table}
        isolation = table.pop("isolation", "shared")
        result |= {"environment_mode": isolation} if isolation != "shared" else {}
        if "sandbox" in table and isinstance(own := table.pop("sandbox"), dict):
            result["environment"] = self._sandbox(own, (*path, "sandbox"))
            self._refuse_rest(own, (*path, "sandbox"))
        self._mount(table, path, ("/verifier", "/tests"))
        return result | self._network(table, path)

    def _oracle(self, table: Table) -> Table:
        self._mount(table, ("oracle",), ("/oracle", "/solution"))
        return {"env": table.pop("env", None)}

    def _mount(self, table: Table, path: KeyPath, known: tuple[str, ...]) -> None:
        self._expect(table, path, {"mount": known})

    def _expect(self, table: Table, path: KeyPath, known: dict[str, tuple[Any, ...]]) -> None:
        """Take settings of which only some values mean what happens anyway."""
        for key, values in known.items():
            if key in table and (value := table.pop(key)) not in values:
                words = " or ".join(repr(item) for item in values if item != "")
                self._refuse((*path, key), f"only {words} is kept by this version", value)

    def _sandbox(self, table: Table, path: KeyPath) -> Table:
        self._expect(table, path, {"boundary": ("container",), "mounts": ([],), "services": ([],)})
        self._expect(table, path, {"compose": ("sandbox/docker-compose.yaml", "docker-compose.yaml")})
        names = {"image": "docker_image", "mcp": "mcp_servers"}
        same = ("os", "cpus", "gpus", "gpu_types", "tpu", "workdir", "env")
        result: Table = {names.get(key, key): table.pop(key) for key in (*names, *same) if key in table}
        result |= self._times(table, path, {"build_timeout": "build_timeout_sec"})
        sizes = {"memory": "memory_mb", "disk": "storage_mb"}
        result |= self._converted(table, path, sizes, meaning=mebibytes, words='a size such as "4 GB"')
        if isinstance(ready := table.get("ready"), dict):
            table.pop("ready")
            result["healthcheck"] = self._ready(ready, (*path, "ready"))
        return result | self._network(table, path)

    def _ready(self, table: Table, path: KeyPath) -> Table:
        times = ("interval", "timeout", "start_period", "start_interval")
        result = self._times(table, path, {key: f"{key}_sec" for key in times})
        result |= {"command": table.pop("run", None)}
        result |= {"retries": table.pop("retries")} if "retries" in table else {}
        self._refuse_rest(table, path)
        return result

    def _times(self, table: Table, path: KeyPath, names: dict[str, str]) -> Table:
        return self._converted(table, path, names, meaning=seconds, words='a time such as "15m"')

    def _converted(
        self,
        table: Table,
        path: KeyPath,
        names: dict[str, str],
        *,
        meaning: Callable[[str], float | None],
        words: str,
    ) -> Table:
        """Take texts with units; a number stays one, in seconds or MiB."""
        result: Table = {}
        for old, new in names.items():
            if old not in table:
                continue
            value = table.pop(old)
            number = meaning(value) if isinstance(value, str) else value
            if number is None:
                self._refuse((*path, old), f"expected {words}", value)
            else:
                result[new] = number
        return result

    def _network(self, table: Table, path: KeyPath) -> Table:
        """Take a network: a word, a list of hosts, or a table that allows or blocks some."""
        if "network" not in table:
            return {}
        value = table.pop("network")
        if isinstance(value, str) and value in _NETWORKS:
            return {"network_mode": _NETWORKS[value]}
        if isinstance(value, list):
            value = {"allow": value}
        if isinstance(value, dict) and set(value) == {"allow"}:
            return {"network_mode": "allowlist", "allowed_hosts": value["allow"]}
        if isinstance(value, dict) and set(value) == {"block"}:
            return {"network_mode": "denylist", "blocked_hosts": value["block"]}
        words = 'expected "open", "none", a list of hosts, or a table with allow or block'
        self._refuse((*path, "network"), words, value)
        return {}

    def _outputs(self, outputs: Any) -> list[Any]:
        """Return outputs as artifacts."""
        found: list[Any] = []
        for index, output in enumerate(outputs if isinstance(outputs, Iterable) else [outputs]):
            if not isinstance(output, dict):
                found.append(output)
                continue
            names = {"path": "source", "save_as": "destination", "exclude": "exclude"}
            found.append({new: output.pop(old) for old, new in names.items() if old in output})
            self._refuse_rest(output, ("sandbox", "outputs", index))
        return found
