"""What a task folder holds besides its task file: tests, solution, image, verifier document."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_client.schema.task_types import finite
from benchflow_client.tasks.dockerfile import missing_sources
from benchflow_client.tasks.findings import Findings, place, shown_name
from benchflow_client.tasks.raw import value_at
from benchflow_client.tasks.task_md import split
from benchflow_client.tasks.text import CONFIG_LIMIT_BYTES, peek_text, read_text
from benchflow_client.tasks.tree import walk
from benchflow_client.tasks.yaml_text import parse_yaml

COMPOSE_FILES = ("environment/docker-compose.yaml", "environment/docker-compose.yml")
"""Files that describe services beside the sandbox."""

_MOST_DIFFERENCES = 5
"""Files that are named when two folders should be equal and are not."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Folders and files of a task, by the names the format gives them."""

    verifier_dir: str | None
    oracle_dir: str | None
    has_dockerfile: bool
    has_compose: bool


def read_layout(folder: Path, findings: Findings) -> Layout:
    """Return what a folder holds; twin folders that differ become problems."""
    composed = [_is_file(folder, name, findings) for name in COMPOSE_FILES]
    return Layout(
        verifier_dir=_choose(folder, "verifier", "tests", findings),
        oracle_dir=_choose(folder, "oracle", "solution", findings),
        has_dockerfile=_is_file(folder, "environment/Dockerfile", findings),
        has_compose=any(composed),
    )


def _is_file(folder: Path, name: str, findings: Findings) -> bool:
    path = os.path.join(folder, name)
    if os.path.isfile(path):
        return True
    if os.path.lexists(path):
        findings.problem(f"{name}: expected a regular file")
    return False


def _choose(folder: Path, native: str, split_form: str, findings: Findings) -> str | None:
    """Return the folder that is used, the native name before the other."""
    there = [name for name in (native, split_form) if os.path.lexists(folder / name)]
    for name in there:
        if not os.path.isdir(folder / name):
            findings.problem(f"{name}: expected a folder")
            return None
    if len(there) == 2:
        compare_folders(folder, native, split_form, findings)
    return there[0] if there else None


def compare_folders(folder: Path, first: str, second: str, findings: Findings) -> None:
    """Refuse two folders of one purpose that do not hold the same files."""
    one, two = _contents(folder / first), _contents(folder / second)
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if differing:
        shown = ", ".join(shown_name(name) for name in differing[:_MOST_DIFFERENCES])
        more = len(differing) - _MOST_DIFFERENCES
        tail = f" and {more} more" if more > 0 else ""
        findings.problem(
            f"{second}: differs from {first} in {shown}{tail}; keep one folder, or make them equal"
        )


def _contents(folder: Path) -> Mapping[str, str]:
    """Return what each file holds, as a digest."""
    return {entry.path: _content(folder, entry.path) for entry in walk(folder) if entry.kind != "folder"}


def _content(folder: Path, path: str) -> str:
    try:
        if not os.path.isfile(folder / path):
            return "not a file"
        with open(folder / path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def warn_about_tests(folder: Path, verifier_dir: str | None, findings: Findings) -> None:
    """Warn when nothing can reach a verdict."""
    if verifier_dir is None:
        findings.warning("no tests: it cannot be scored; add tests/test.sh")
    elif not any(os.path.isfile(folder / verifier_dir / name) for name in ("test.sh", "verifier.md")):
        findings.warning(f"{verifier_dir}/test.sh: no such file: it cannot be scored")


def check_context(folder: Path, findings: Findings) -> None:
    """Refuse a Dockerfile that copies what its build context lacks."""
    text = peek_text(folder / "environment/Dockerfile")
    for missing in missing_sources(text or "", folder / "environment"):
        where = place("environment/Dockerfile", missing.line)
        findings.problem(
            f"{where}: `{shown_name(missing.instruction)}`: no {shown_name(missing.source)!r} below environment/; "
            "the build context is environment/, so every path starts there"
        )


def read_strategy(folder: Path, findings: Findings) -> dict[str, Any]:
    """Return the default strategy of verifier/verifier.md, empty where there is none."""
    name = "verifier/verifier.md"
    if not os.path.lexists(folder / name):
        return {}
    text = read_text(folder, name, findings, limit_bytes=CONFIG_LIMIT_BYTES)
    if text is None or not text.startswith("---"):
        return {}
    parts = split(text, findings, file=name)
    raw = None if parts is None else parse_yaml(parts.front_matter, name, findings, first_line=2)
    if raw is None:
        return {}
    strategies = value_at(raw.data, ("verifier", "strategies"))
    if not isinstance(strategies, dict) or not strategies:
        return {}
    chosen = value_at(raw.data, ("verifier", "default_strategy")) or next(iter(strategies))
    strategy = strategies.get(chosen) if isinstance(chosen, str) else None
    if not isinstance(strategy, dict):
        path = ("verifier", "default_strategy")
        findings.problem(raw.says(path, f"expected one of {', '.join(map(str, strategies))}", chosen))
        return {}
    kept: dict[str, Any] = finite({**strategy, "name": chosen})
    policy = value_at(raw.data, ("verifier", "outputs", "aggregate_policy"))
    if policy is not None:
        kept["aggregate_policy"] = finite({"method": policy} if isinstance(policy, str) else policy)
    return kept
