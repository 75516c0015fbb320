"""Convert a task of Terminal-Bench 0.x (task.yaml, run-tests.sh, solution.sh) into the form that is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from benchflow_client.schema.task_types import Flag, PlainText, TimeoutS
from benchflow_client.tasks.config import validate_leniently
from benchflow_client.tasks.converted import Converted
from benchflow_client.tasks.findings import Findings, shown_name
from benchflow_client.tasks.old_compose import OLD_COMPOSE_FILES, OldMachine, read_old_machine
from benchflow_client.tasks.raw import Raw
from benchflow_client.tasks.text import PROMPT_LIMIT_BYTES, read_text
from benchflow_client.tasks.toml_text import toml_text
from benchflow_client.tasks.yaml_text import parse_yaml

OLD_TASK_FILE = "task.yaml"
"""A folder that holds it, and no newer task file, is a task of Terminal-Bench 0.x."""

_RUN_TESTS = "run-tests.sh"
_SOLUTIONS = ("solution.sh", "solution.yaml")
_NOT_IN_THE_IMAGE = (OLD_TASK_FILE, _RUN_TESTS, "tests", *_SOLUTIONS, *OLD_COMPOSE_FILES)
"""What stands beside the Dockerfile and is none of the agent's business."""

_DIFFICULTIES = ("easy", "medium", "hard", "unknown")

_TEST_SCRIPT = """\
#!/bin/sh
# Runs the tests of a Terminal-Bench 0.x task where its agent worked; the outcome becomes the reward.
export TEST_DIR=/tests
output=/logs/verifier/run-tests.txt
cd "${BENCHFLOW_AGENT_CWD:-/}" || exit 1
shell=sh
if command -v bash > /dev/null 2>&1; then shell=bash; fi
"$shell" "$TEST_DIR/run-tests.sh" > "$output" 2>&1 < /dev/null
status=$?
cat "$output"
if [ "$status" -ge 126 ]; then
  echo "run-tests.sh ended with $status: its tests did not run, so there is no reward" >&2
  exit 1
fi
if [ "$status" -ne 0 ] || sed -n '/short test summary info/,$p' "$output" | grep -Eq '^(FAILED|ERROR) '; then
  echo 0 > /logs/verifier/reward.txt
else
  echo 1 > /logs/verifier/reward.txt
fi
"""


class _OldTask(BaseModel):
    """The keys of a task.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instruction: PlainText = Field(description="The prompt.")
    author_name: Any = Field(default="unknown", description="Who wrote it.")
    author_email: Any = Field(default="unknown", description="Where to ask.")
    difficulty: Any = Field(default="unknown", description="easy, medium, hard or unknown.")
    category: Any = Field(default="software_engineering", description="Field of work.")
    tags: Any = Field(default=(), description="Words to find it by.")
    parser_name: str = Field(default="pytest", description="Who reads the output of the tests.")
    max_agent_timeout_sec: TimeoutS = Field(default=360.0, description="Seconds of the agent.")
    max_test_timeout_sec: TimeoutS = Field(default=60.0, description="Seconds of the tests.")
    run_tests_in_same_shell: Flag = Field(default=False, description="Tests see the agent's shell.")
    disable_asciinema: Flag = Field(default=False, description="No recording of the terminal.")
    estimated_duration_sec: Any = Field(default=None, description="Seconds it usually takes.")
    expert_time_estimate_min: Any = Field(default=None, description="Minutes of an expert.")
    junior_time_estimate_min: Any = Field(default=None, description="Minutes of a beginner.")

    @field_validator("instruction")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is empty; write what the agent should do")
        return value

    @field_validator("parser_name")
    @classmethod
    def _pytest_only(cls, value: str) -> str:
        if value != "pytest":
            raise ValueError("only the results of pytest are understood; let run-tests.sh run pytest")
        return value

    @field_validator("run_tests_in_same_shell")
    @classmethod
    def _own_shell_only(cls, value: Flag) -> Flag:
        if value:
            raise ValueError("tests never run in the agent's shell here; make run-tests.sh set up its own")
        return value


def convert_old_task(folder: Path, findings: Findings) -> Converted | None:
    """Return the converted folder of a Terminal-Bench 0.x task, or None when a problem was added.

    The prompt, timeouts and metadata come from task.yaml, the machine from the compose
    file and the Dockerfile, the reward from how run-tests.sh ends; nothing is left to
    the old harness.
    """
    text = read_text(folder, OLD_TASK_FILE, findings, limit_bytes=PROMPT_LIMIT_BYTES)
    raw = None if text is None else parse_yaml(text, OLD_TASK_FILE, findings, first_line=1)
    old = None if raw is None else _read_old(raw, findings)
    machine = read_old_machine(folder, findings)
    if not os.path.isfile(folder / _RUN_TESTS):
        findings.problem(f"{_RUN_TESTS}: missing, so the task cannot be scored")
    if os.path.lexists(folder / "tests/test.sh"):
        findings.problem("tests/test.sh: the converted task needs this name for itself; rename it")
    if old is None or machine is None or findings.problems:
        return None
    converted = Converted()
    _add_environment(folder, machine, converted, findings)
    if os.path.isdir(folder / "tests"):
        converted.add_tree(folder / "tests", "tests", findings)
    converted.add_file(f"tests/{_RUN_TESTS}", folder / _RUN_TESTS)
    converted.add_text("tests/test.sh", _TEST_SCRIPT, is_executable=True)
    converted.add_text("task.toml", _config(old, machine))
    converted.add_text("instruction.md", old.instruction)
    _add_solution(folder, converted, findings)
    return None if findings.problems else converted


def _read_old(raw: Raw, findings: Findings) -> _OldTask | None:
    """Return the keys of a task.yaml."""
    old, _ = validate_leniently(_OldTask, raw, findings)
    if old is not None and old.difficulty not in _DIFFICULTIES:
        findings.warning(
            raw.says(("difficulty",), f"expected one of {', '.join(_DIFFICULTIES)}", old.difficulty)
        )
    return old


def _config(old: _OldTask, machine: OldMachine) -> str:
    """Return the task.toml; the old harness set no limits, and neither does version 1.4."""
    about = old.model_dump(
        include={
            "author_name",
            "author_email",
            "difficulty",
            "category",
            "tags",
            "estimated_duration_sec",
            "expert_time_estimate_min",
            "junior_time_estimate_min",
        }
    )
    environment: dict[str, Any] = {"docker_image": machine.image, "workdir": machine.workdir}
    return toml_text({
        "schema_version": "1.4",
        "source": "Terminal-Bench 0.x task.yaml",
        "metadata": about,
        "agent": {"timeout_sec": old.max_agent_timeout_sec},
        "verifier": {"timeout_sec": old.max_test_timeout_sec},
        "environment": {**environment, "env": machine.env or None},
    })


def _add_environment(folder: Path, machine: OldMachine, converted: Converted, findings: Findings) -> None:
    """Add the build context, and what else the machine needs."""
    context = folder if machine.context == "." else folder / machine.context
    if not context.is_dir():
        findings.problem(f"{machine.context}: the build context is no folder")
        return
    left_out = _NOT_IN_THE_IMAGE if context == folder else ()
    converted.add_tree(context, "environment", findings, without=left_out)
    if machine.dockerfile != "Dockerfile":
        dockerfile = context / machine.dockerfile
        if not dockerfile.is_file():
            findings.problem(f"{shown_name(machine.dockerfile)}: no such Dockerfile in the build context")
            return
        converted.add_file("environment/Dockerfile", dockerfile)
    if machine.compose is not None:
        converted.add_text("environment/docker-compose.yaml", machine.compose)


def _add_solution(folder: Path, converted: Converted, findings: Findings) -> None:
    """Add the reference solution; one that cannot be a script is left out with a warning."""
    if os.path.isfile(folder / "solution.sh"):
        converted.add_file("solution/solve.sh", folder / "solution.sh")
    elif os.path.isfile(folder / "solution.yaml") and (script := _typed_commands(folder, findings)):
        converted.add_text("solution/solve.sh", script, is_executable=True)


def _typed_commands(folder: Path, findings: Findings) -> str:
    """Return the commands of a solution.yaml as a script; empty when they are not plain commands."""
    own = Findings()
    text = read_text(folder, "solution.yaml", own, limit_bytes=PROMPT_LIMIT_BYTES)
    raw = None if text is None else parse_yaml(f"commands:\n{text}", "solution.yaml", own, first_line=0)
    steps = None if raw is None else raw.data.get("commands")
    for problem in own.problems:
        findings.warning(problem)
    commands: list[str] = []
    for step in steps if isinstance(steps, list) else []:
        command = step.get("command") if isinstance(step, dict) else step
        if not isinstance(command, str) or (isinstance(step, dict) and step.get("append_enter") is False):
            findings.warning(
                "solution.yaml: types keys into a terminal, which no script can; the oracle has no solution"
            )
            return ""
        commands.append(command)
    return "\n".join(("#!/bin/bash", *commands)) + "\n" if commands else ""
