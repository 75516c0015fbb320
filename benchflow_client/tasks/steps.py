"""Check the steps of a multi-step task while it is read: their tables and their folders."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from benchflow_client.schema.task import TaskConfig
from benchflow_client.schema.task_steps import StepTables, step_tables
from benchflow_client.tasks.config import validate, validate_leniently
from benchflow_client.tasks.findings import Findings, shown_name
from benchflow_client.tasks.raw import Raw
from benchflow_client.tasks.text import PROMPT_LIMIT_BYTES, read_text

__all__ = ["TEST_FOLDERS", "check_steps", "warn_about_steps"]

TEST_FOLDERS = ("verifier", "tests")
"""Names the folder of a step's tests may have, the native one first."""


def check_steps(folder: Path, raw: Raw, findings: Findings, *, is_lenient: bool) -> tuple[str, ...]:
    """Add every problem of the steps; each needs a valid table and an instruction.

    Args:
        folder: The task folder.
        raw: Its task file, before the whole is validated; unknown keys of steps are
            taken out where they may be.
        findings: Gets the problems.
        is_lenient: Unknown keys are warnings.

    Returns:
        The unknown keys that were taken out.
    """
    if not raw.data.get("steps"):
        return ()
    ignored: tuple[str, ...] = ()
    part = replace(raw, data={"steps": raw.data["steps"]})
    if is_lenient:
        tables, ignored = validate_leniently(StepTables, part, findings)
    else:
        tables = validate(StepTables, part, findings)
    for step in () if tables is None else tables.steps:
        name = f"steps/{step.name}/instruction.md"
        text = read_text(folder, name, findings, limit_bytes=PROMPT_LIMIT_BYTES)
        if text is not None and not text.strip():
            findings.problem(f"{shown_name(name)}: is empty; write what the agent should do")
    return ignored


def warn_about_steps(folder: Path, config: TaskConfig, findings: Findings) -> None:
    """Warn of each step that cannot reach a verdict: neither it nor the task has a test script."""
    if any(os.path.isfile(folder / name / "test.sh") for name in TEST_FOLDERS):
        return
    for step in step_tables(config):
        own = f"steps/{step.name}"
        if not any(os.path.isfile(folder / own / name / "test.sh") for name in TEST_FOLDERS):
            findings.warning(f"{shown_name(own)}/tests/test.sh: no such file: it cannot be scored")
