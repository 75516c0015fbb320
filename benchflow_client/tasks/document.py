"""The keys only task.md has: roles, scenes, a simulated user, and how prompts are put together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.scenes import TaskDocument
from benchflow_client.schema.task_types import finite
from benchflow_client.tasks.config import validate
from benchflow_client.tasks.findings import Findings, nearest
from benchflow_client.tasks.raw import Raw

DOCUMENT_KEYS = ("agents", "scenes", "user", "benchflow")
"""Top-level keys of task.md that task.toml does not have."""


def read_document(raw: Raw, folder: Path, findings: Findings) -> dict[str, Any]:
    """Return the validated document keys a file gives, taken out of `raw.data`."""
    given = {key: raw.data.pop(key) for key in DOCUMENT_KEYS if key in raw.data}
    if not given:
        return {}
    benchflow = given.get("benchflow")
    checked = dict(given)
    if isinstance(benchflow, dict):  # a free map but for `prompt`
        checked["benchflow"] = {key: benchflow[key] for key in ("prompt",) if key in benchflow}
    document = validate(TaskDocument, Raw(raw.file, checked, raw.find_lines, raw.written), findings)
    if document is None:
        return given
    _check_roles(document, raw, findings)
    _check_scripts(document, raw, folder, findings)
    kept = document.model_dump(mode="json", exclude_unset=True, include=set(given))
    if "scenes" in kept:
        kept["scenes"] = [{"name": f"scene-{i}", **scene} for i, scene in enumerate(kept["scenes"], start=1)]
    return kept | ({"benchflow": finite(benchflow)} if benchflow else {})


def _check_roles(document: TaskDocument, raw: Raw, findings: Findings) -> None:
    """Refuse scenes that name roles nobody declared."""
    declared = list(document.agents.roles)
    for index, scene in enumerate(document.scenes):
        for role in dict.fromkeys((*scene.roles, *(turn.role for turn in scene.turns))):
            if role not in declared:
                reason = f"role {role!r} is not declared in agents.roles{nearest(role, declared)}"
                findings.problem(raw.says(("scenes", index), reason))


def _check_scripts(document: TaskDocument, raw: Raw, folder: Path, findings: Findings) -> None:
    """Refuse roles played by a script that is not in the task's folder."""
    for name, role in document.agents.roles.items():
        agent = AgentSpec.model_validate(role.agent)
        if not agent.is_script:
            continue
        script = Path(os.path.realpath(folder / agent.name))  # a link may lead out of the folder
        if not script.is_file() or not script.is_relative_to(os.path.realpath(folder)):
            reason = "expected a registered agent, or a script below the task's folder"
            findings.problem(raw.says(("agents", "roles", name, "agent"), reason, role.agent))
