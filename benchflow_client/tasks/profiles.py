"""Expand what task.md may leave out: shorthands and profiles.

A profile is a set of defaults below what the author writes. Two are known by what
they set; the others' names are accepted, so that files of older tools stay readable.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from benchflow_client.tasks.findings import Findings, nearest
from benchflow_client.tasks.raw import KeyPath, Raw, dotted

_CODE_AGENT: dict[str, Any] = {
    "agent": "codex-acp",
    "model": "gpt-5.5",
    "reasoning_effort": "xhigh",
    "capabilities": ["code-edit", "tests"],
}

_PROFILES: dict[str, dict[str, Any]] = {
    "code-change": {
        "agent": {"timeout_sec": 7200.0, "network_mode": "no-network"},
        "verifier": {"timeout_sec": 1200.0, "user": "root"},
        "sandbox": {
            "docker_image": "ubuntu:24.04",
            "network_mode": "no-network",
            "cpus": 4.0,
            "memory_mb": 8192,
            "storage_mb": 10240,
            "workdir": "/repo",
        },
        "benchflow": {"prompt": {"composition": "append"}},
    },
    "multi-agent": {
        "agents": {
            "roles": {
                "architect": _CODE_AGENT,
                "implementer": _CODE_AGENT,
                "reviewer": {
                    "agent": "claude-agent-acp",
                    "model": "claude-sonnet-4-6",
                    "capabilities": ["review"],
                },
            }
        },
        "scenes": [
            {"name": "design", "roles": ["architect"], "turns": [{"role": "architect"}]},
            {"name": "implement", "roles": ["implementer"], "turns": [{"role": "implementer"}]},
            {"name": "review", "roles": ["reviewer"], "turns": [{"role": "reviewer"}]},
        ],
    },
}

_WITHOUT_EFFECT = ("harbor-compatible", "reward-kit", "acceptance-live", "leaderboard-local")
"""Profiles whose name is accepted and which set nothing here."""


def expand_shorthands(raw: Raw, findings: Findings) -> Raw:
    """Return the file with every short key moved to where the schema has it."""
    shorthands = _Shorthands(raw, findings)
    name = raw.data.get("name")
    is_short = isinstance(name, str) and "/" not in name
    shorthands.move("name", ("task", "name"), f"benchflow/{name}" if is_short else name)
    shorthands.move("image", ("sandbox", "docker_image"), raw.data.get("image"))
    for key in ("verifier", "oracle"):
        if isinstance(path := raw.data.get(key), str):
            shorthands.move(key, ("benchflow", key, "path"), path)
    return replace(raw, written={**raw.written, **shorthands.written})


def apply_profiles(raw: Raw, findings: Findings) -> None:
    """Merge the profiles a file names below what it says itself; the first named wins."""
    for key, name in _profile_names(raw, findings):
        if name in _PROFILES:
            _merge_below(raw.data, copy.deepcopy(_PROFILES[name]))
        else:
            findings.warning(raw.says((key,), f"profile {name!r} sets nothing in this version"))


class _Shorthands:
    """Moves short keys to where the schema has them, and remembers how they were written."""

    def __init__(self, raw: Raw, findings: Findings) -> None:
        self._raw = raw
        self._findings = findings
        self.written: dict[KeyPath, KeyPath] = {}

    def move(self, key: str, path: tuple[str, ...], value: Any) -> None:
        """Set the nested key a top-level shorthand stands for."""
        if self._raw.data.pop(key, None) is None:
            return
        table = self._raw.data
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                return  # the wrong type is reported when the table itself is validated
        if path[-1] in table:
            self._findings.problem(
                self._raw.says((key,), f"is a shorthand of {dotted(path)}; give one of the two")
            )
            return
        table[path[-1]] = value
        self.written[path] = (key,)


def _profile_names(raw: Raw, findings: Findings) -> list[tuple[str, str]]:
    """Return the known profiles a file names, each with the key that names it, first named first."""
    one, many = raw.data.pop("profile", None), raw.data.pop("profiles", None)
    if many is not None and not isinstance(many, list):
        findings.problem(raw.says(("profiles",), "expected a list of profile names", many))
        many = None
    known, found = [*_PROFILES, *_WITHOUT_EFFECT], []
    for key, name in [("profile", one)] * (one is not None) + [("profiles", name) for name in many or []]:
        if name in known:
            found.append((key, str(name)))
            continue
        hint = nearest(name, known) if isinstance(name, str) else ""
        findings.problem(raw.says((key,), f"no such profile; there are {', '.join(known)}{hint}", name))
    return found


def _merge_below(target: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Fill in defaults where the target says nothing."""
    for key, value in defaults.items():
        if key not in target:
            target[key] = value
        elif isinstance(target[key], dict) and isinstance(value, dict):
            _merge_below(target[key], value)
