"""Convert a task whose task.md begins with the prompt and ends with a `toml task` block."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from benchflow_client.tasks.converted import Converted
from benchflow_client.tasks.fenced_blocks import FencedDocument, is_fenced, take_apart
from benchflow_client.tasks.fenced_config import fenced_config
from benchflow_client.tasks.findings import Findings, place
from benchflow_client.tasks.layout import compare_folders
from benchflow_client.tasks.text import PROMPT_LIMIT_BYTES, peek_text, read_text
from benchflow_client.tasks.toml_file import parse_toml
from benchflow_client.tasks.toml_text import toml_text

_FILE = "task.md"

_TEST_SCRIPT = """\
#!/bin/sh
# This form runs its tests where the agent worked.
cd "${{BENCHFLOW_AGENT_CWD:-/}}" || exit 1
script={mount}/{script}
case "$(head -n 1 "$script")" in
'#!'*) exec "$script" ;;
esac
if command -v bash > /dev/null 2>&1; then exec bash "$script"; fi
exec sh "$script"
"""

_OWN_SCRIPT = "original-test.sh"

_MOUNTS = {"verifier": "/verifier", "oracle": "/oracle"}
"""Where the form places tests and solution unless it says so."""

_TWINS = {"verifier": "tests", "oracle": "solution", "sandbox": "environment"}
"""Folders that other readers know by another name; where both stand, they must be equal."""

_NOT_KEPT = {
    "verifier/rubric.json": "scoring by a rubric is not run by this version",
    "verifier/behaviors.json": "watching for behaviour is not run by this version",
    "family/": "tasks made from a seed are not run by this version",
    "world/": "worlds are not run by this version",
    "stages/": "stages are not run by this version",
}
"""Parts of the form that change what is scored."""


def is_fenced_task(folder: Path) -> bool:
    """Return whether a folder's task.md is of this form."""
    text = peek_text(folder / _FILE, limit_bytes=PROMPT_LIMIT_BYTES)
    return text is not None and is_fenced(text.removeprefix("\ufeff"))


def convert_fenced_task(folder: Path, findings: Findings) -> Converted | None:
    """Return the converted folder of such a task, or None when a problem was added."""
    text = read_text(folder, _FILE, findings, limit_bytes=PROMPT_LIMIT_BYTES)
    if text is None:
        return None
    document = take_apart(text)
    config = _config(document, findings)
    for native, other in _TWINS.items():
        if os.path.isdir(folder / native) and os.path.isdir(folder / other):
            compare_folders(folder, native, other, findings)
    for name, reason in _NOT_KEPT.items():
        if os.path.lexists(folder / name.rstrip("/")):
            findings.problem(f"{name}: {reason}")
    if not document.prompt:
        findings.problem(f"{_FILE}: no prompt; write what the agent should do above the blocks")
    if config is None or findings.problems:
        return None
    text, mounts = config
    converted = Converted()
    _add_parts(folder, mounts, converted, findings)
    converted.add_text("task.toml", text)
    converted.add_text("instruction.md", document.prompt)
    return None if findings.problems else converted


def _config(document: FencedDocument, findings: Findings) -> tuple[str, dict[str, str]] | None:
    """Return the task.toml and where tests and solution are placed."""
    if document.stray_line is not None:
        findings.problem(
            f"{place(_FILE, document.stray_line)}: nothing but blocks may follow the first block"
        )
    blocks = [block for block in document.blocks if block.info == "toml task"]
    for block in document.blocks:
        if block.info.split(" ")[0] in {"stage", "role", "user"}:
            findings.problem(
                f"{place(_FILE, block.line - 1)}: a {block.info!r} block is not run by this version"
            )
        if not block.is_closed:
            findings.problem(f"{place(_FILE, block.line - 1)}: the block that starts here is never ended")
    if len(blocks) != 1:
        findings.problem(f"{place(_FILE, blocks[1].line - 1)}: a second `toml task` block; keep one")
        return None
    # Blank lines in front, so that every line number is that of the file.
    raw = parse_toml("\n" * (blocks[0].line - 1) + blocks[0].text, _FILE, findings)
    if raw is None:
        return None
    mounts = {key: _mount(raw.data.get(key), default) for key, default in _MOUNTS.items()}
    return toml_text(fenced_config(replace(raw), findings)), mounts


def _mount(table: object, default: str) -> str:
    mount = table.get("mount", default) if isinstance(table, dict) else default
    return mount if isinstance(mount, str) else default


def _add_parts(folder: Path, mounts: dict[str, str], converted: Converted, findings: Findings) -> None:
    """Add image, tests and solution."""
    if os.path.isdir(folder / "sandbox"):
        converted.add_tree(folder / "sandbox", "environment", findings)
    if os.path.isdir(folder / "oracle"):
        converted.add_tree(folder / "oracle", mounts["oracle"].lstrip("/"), findings)
    if not os.path.isdir(folder / "verifier"):
        return
    target = mounts["verifier"].lstrip("/")
    converted.add_tree(folder / "verifier", target, findings)
    script = converted.files.pop(f"{target}/test.sh", None)
    if script is not None:
        converted.files[f"{target}/{_OWN_SCRIPT}"] = replace(script, is_executable=True)
        wrapper = _TEST_SCRIPT.format(mount=f"/{target}", script=_OWN_SCRIPT)
        converted.add_text(f"{target}/test.sh", wrapper, is_executable=True)
