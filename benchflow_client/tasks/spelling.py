"""Bring the spellings a task file may use to the one the schema knows.

Harbor and older files say `environment`, `memory = "2G"`, `allow_internet`; each
becomes the schema's key here, and a key given in two spellings is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchflow_client.tasks.findings import Findings, shown_value
from benchflow_client.tasks.raw import KeyPath, Raw, value_at

_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT])i?B?", re.IGNORECASE)
_MIB_PER_UNIT = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_WITHOUT_LIMITS = re.compile(r"1\.0*([4-9]|[1-9]\d+)(\.\d+)?")
"""Versions of the format in which a limit that is not given is no limit."""

_LIMITS = ("cpus", "memory_mb", "storage_mb")
_INLINE_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_NUMBER_TEXT = re.compile(r"\d{1,6}(\.\d{1,6})?")


def unify(raw: Raw, findings: Findings, *, has_toml_names: bool) -> Raw:
    """Return the file with one spelling per key; contradictions become problems.

    Args:
        raw: The parsed file; its data is changed in place, as it is a copy already.
        findings: Gets contradictions and the warnings about old spellings.
        has_toml_names: Whether `environment` may stand for `sandbox`, as in task.toml.
    """
    spelling = _Spelling(raw, findings)
    spelling.rename((), "version", "schema_version")
    spelling.rename((), "solution", "oracle")
    if has_toml_names:
        spelling.rename((), "environment", "sandbox")
        for verifier in _verifiers(raw.data):
            spelling.rename(verifier, "environment", "sandbox")
            spelling.rename(verifier, "environment_mode", "sandbox_mode")
    for table in (("sandbox",), ("verifier", "sandbox")):
        spelling.settle_sandbox(table)
    spelling.gather_inline_variables(("oracle",))
    _open_artifacts(raw.data)
    return replace(raw, written=spelling.written)


def lift_limits(raw: Raw) -> None:
    """Leave a sandbox unlimited where a file of version 1.4 or later says nothing; older files mean defaults."""
    version = raw.data.get("schema_version")
    if not isinstance(version, str) or not _WITHOUT_LIMITS.fullmatch(version):
        return
    for table in (raw.data.setdefault("sandbox", {}), value_at(raw.data, ("verifier", "sandbox"))):
        if isinstance(table, dict):
            for key in _LIMITS:
                table.setdefault(key, None)


def mebibytes(text: str) -> int | None:
    """Return the MiB a size such as "2G", "512 MB" or "4 GiB" means; None = it is no such size, or less than one."""
    match = _SIZE.fullmatch(text.strip())
    return (round(float(match[1]) * _MIB_PER_UNIT[match[2].upper()]) or None) if match else None


def _verifiers(data: dict[str, Any]) -> Iterator[KeyPath]:
    yield ("verifier",)
    steps = data.get("steps")
    for index in range(len(steps) if isinstance(steps, list) else 0):
        yield ("steps", index, "verifier")


def _open_artifacts(data: dict[str, Any]) -> None:
    """Write out artifacts given as a path only."""
    items = data.get("artifacts")
    if isinstance(items, list):
        data["artifacts"] = [{"source": item} if isinstance(item, str) else item for item in items]


class _Spelling:
    """Renames keys and remembers how the author wrote them."""

    def __init__(self, raw: Raw, findings: Findings) -> None:
        self._raw = raw
        self._findings = findings
        self.written: dict[KeyPath, KeyPath] = {}

    def _table(self, path: KeyPath) -> dict[str, Any] | None:
        table = value_at(self._raw.data, path)
        return table if isinstance(table, dict) else None

    def _says(self, path: KeyPath, reason: str, value: Any = None) -> str:
        return replace(self._raw, written=self.written).says(path, reason, value)

    def rename(self, where: KeyPath, old: str, new: str) -> None:
        """Move a key to its other name."""
        table = self._table(where)
        if table is None or old not in table:
            return
        if new in table:
            self._findings.problem(
                self._says((*where, old), f"is another spelling of {new}; give one of the two")
            )
            table.pop(old)
            return
        table[new] = table.pop(old)
        self.written[*where, new] = (*self._raw_path(where), old)

    def _raw_path(self, where: KeyPath) -> KeyPath:
        return replace(self._raw, written=self.written).as_written(where)

    def settle_sandbox(self, where: KeyPath) -> None:
        """Settle the old keys of one sandbox table."""
        self.rename(where, "image", "docker_image")
        self._convert_size(where, "memory")
        self._convert_size(where, "storage")
        self._convert_cpus(where)
        self._convert_internet(where)

    def _convert_size(self, where: KeyPath, old: str) -> None:
        table = self._table(where)
        if table is None or old not in table:
            return
        value, new = table[old], f"{old}_mb"
        size_mb = mebibytes(value) if isinstance(value, str) else None
        if size_mb is None:
            self._findings.problem(self._says((*where, old), 'expected a size such as "2G" or "512M"', value))
            table.pop(old)
        elif new in table:
            self.rename(where, old, new)
        else:
            self._findings.warning(
                self._says((*where, old), f"is an old spelling; write {new} = {size_mb}", value)
            )
            table[old] = size_mb
            self.rename(where, old, new)

    def _convert_cpus(self, where: KeyPath) -> None:
        """Accept `cpus = "2"`, which the old form with text sizes goes with."""
        table = self._table(where)
        value = None if table is None else table.get("cpus")
        if table is not None and isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
            number = float(value)
            self._findings.warning(self._says((*where, "cpus"), f"write {number:g} without quotes", value))
            table["cpus"] = number

    def _convert_internet(self, where: KeyPath) -> None:
        table = self._table(where)
        if table is None or "allow_internet" not in table:
            return
        path, value = (*where, "allow_internet"), table.pop("allow_internet")
        if not isinstance(value, bool):
            self._findings.problem(self._says(path, "expected true or false", value))
            return
        mode = "public" if value else "no-network"
        if "network_mode" not in table:
            table["network_mode"] = mode
            self.written[*where, "network_mode"] = (*self._raw_path(where), "allow_internet")
        elif table["network_mode"] != mode:
            reason = f"contradicts network_mode = {shown_value(table['network_mode'])}; give one of the two"
            self._findings.problem(self._says(path, reason, value))

    def gather_inline_variables(self, where: KeyPath) -> None:
        """Move upper-case keys of the table into its `env`."""
        table = self._table(where)
        inline = [] if table is None else [key for key in table if _INLINE_VARIABLE.fullmatch(key)]
        if table is None or not inline:
            return
        env = table.setdefault("env", {})
        for key in inline:
            value = table.pop(key)
            if not isinstance(env, dict):
                continue
            if env.setdefault(key, value) != value:
                self._findings.problem(
                    self._says((*where, key), "contradicts the same variable in env; give one")
                )
            self.written[*where, "env", key] = (*self._raw_path(where), key)
