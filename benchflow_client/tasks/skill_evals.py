"""From a skill with `evals/evals.json` to tasks that any agent can be run on, with and without the skill."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from benchflow_client.errors import UsageError
from benchflow_client.schema.ids import short_digest
from benchflow_client.schema.skill_evals import EvalCase, SkillEvals
from benchflow_client.schema.skills import SKILL_FILE, SKILLS_DIR
from benchflow_client.tasks.bundle import digest_of
from benchflow_client.tasks.skills import skill_problems
from benchflow_client.tasks.toml_text import toml_text
from benchflow_client.tasks.tree import LEFT_OUT
from benchflow_client.version import __version__

__all__ = ["EVALS_FILE", "EvalTasks", "read_evals", "write_eval_tasks"]

EVALS_FILE: Final = "evals/evals.json"
"""Where a skill's questions stand in its folder."""

_LIMIT_BYTES: Final = 8 << 20
_BASE: Final = "python:3.12-slim"
"""Image of tasks whose skill brings no Dockerfile: skills often have scripts in Python."""

_REQUIREMENTS: Final = """\
COPY requirements.txt /opt/requirements.txt
RUN pip install --no-cache-dir -q -r /opt/requirements.txt
"""

_TEST: Final = """\
#!/bin/sh
# 1 when the agent's last message holds the expected answer as whole words, else 0; blanks count as one.
said=/opt/benchflow/final-message.txt
if [ ! -f "$said" ]; then
  echo "what the agent said is not known" >&2
  exit 1
fi
flat() { tr '\\000' ' ' <"$1" | tr -s '[:space:]' ' '; }
expected=$(flat "$(dirname "$0")/ground-truth.txt" | sed 's/^ //; s/ $//')
if [ -n "$expected" ] && flat "$said" | grep -qwF -e "$expected"; then
  echo 1 >/logs/verifier/reward.txt
else
  echo 0 >/logs/verifier/reward.txt
fi
"""


@dataclass(frozen=True, slots=True)
class EvalTasks:
    """What a skill's questions came to on this machine.

    Attributes:
        tasks: Folder of the tasks, one a case.
        skills: Folder of skills with the skill alone, its questions left out.
    """

    tasks: Path
    skills: Path


def read_evals(skill: Path) -> SkillEvals:
    """Return the questions of a skill.

    Raises:
        UsageError: The folder is no skill with questions, or they cannot be read.
    """
    file = skill / EVALS_FILE
    if not (skill / SKILL_FILE).is_file() or not file.is_file():
        missing = SKILL_FILE if not (skill / SKILL_FILE).is_file() else EVALS_FILE
        raise UsageError(
            f"{str(skill)!r} has no {missing}, so there is nothing to evaluate.",
            hint=f"A skill's folder has {SKILL_FILE} and {EVALS_FILE}: docs/skills.md.",
        )
    try:
        if file.stat().st_size > _LIMIT_BYTES:
            raise UsageError(f"{file} is larger than a file of questions can be.")
        data = json.loads(file.read_text(encoding="utf-8-sig"))
        evals = SkillEvals.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{file}: {place}: {text}.", hint="docs/skills.md lists the keys.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}.", hint="It must be JSON in UTF-8.") from error
    return evals if evals.skill_name else evals.model_copy(update={"skill_name": skill.resolve().name})


def write_eval_tasks(evals: SkillEvals, skill: Path, room: Path) -> EvalTasks:
    """Write a task for each question, and the skill without its questions.

    Args:
        evals: The questions.
        skill: The skill's folder.
        room: Folder for what is made of skills; the same skill has the same place in it.

    Raises:
        UsageError: The skill cannot be placed in a sandbox.
        TaskError: Its folder cannot be read whole.
    """
    name = short_digest(digest_of(skill), evals.model_dump_json(), __version__)
    place = room / f"{skill.resolve().name}-{name}"
    found = EvalTasks(place / "tasks", place / "skills")
    if place.is_dir():
        return found
    room.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=room))
    try:
        _copy_skill(evals, skill, made / "skills")
        for case in evals.cases:
            _write_task(evals, case, skill, made / "tasks" / case.id)
        made.chmod(0o755)
        made.rename(place)
    except OSError as error:
        if not place.is_dir():  # else another command was faster: it holds the same
            raise UsageError(f"{room} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return found


def _copy_skill(evals: SkillEvals, skill: Path, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        own = {"evals"} if Path(folder) == skill else set()
        return (own | LEFT_OUT) & set(names)

    shutil.copytree(skill, target / evals.skill_name, symlinks=True, ignore=left_out)
    problems = skill_problems(target)
    if problems:
        raise UsageError(
            f"The skill {str(skill)!r} cannot be placed in a sandbox: {'; '.join(problems)}.",
            hint="Correct what is listed.",
        )


def _write_task(evals: SkillEvals, case: EvalCase, skill: Path, folder: Path) -> None:
    environment, tests = folder / "environment", folder / "tests"
    environment.mkdir(parents=True)
    tests.mkdir()
    (folder / "instruction.md").write_text(f"{case.question}\n", encoding="utf-8")
    (folder / "task.toml").write_text(toml_text(_config(evals, case)), encoding="utf-8")
    (tests / "test.sh").write_text(_TEST, encoding="utf-8")
    (tests / "test.sh").chmod(0o755)
    (tests / "ground-truth.txt").write_text(case.ground_truth, encoding="utf-8")
    requirements, dockerfile = skill / "evals" / "requirements.txt", skill / "evals" / "Dockerfile"
    if requirements.is_file():
        shutil.copyfile(requirements, environment / "requirements.txt")
    if dockerfile.is_file():
        shutil.copyfile(dockerfile, environment / "Dockerfile")
    else:
        more = _REQUIREMENTS if requirements.is_file() else ""
        (environment / "Dockerfile").write_text(f"FROM {_BASE}\n{more}WORKDIR /app\n", encoding="utf-8")


def _config(evals: SkillEvals, case: EvalCase) -> dict[str, Any]:
    defaults = evals.defaults
    place = None if defaults.skill_mount_dir == SKILLS_DIR else defaults.skill_mount_dir
    return {
        "schema_version": "1.3",
        "metadata": {"category": "skill-eval", "skill": evals.skill_name},
        "agent": {"timeout_sec": defaults.timeout_sec},
        "verifier": {"timeout_sec": 120.0},
        "environment": {"skills_dir": place, "env": dict(case.environment) or None},
    }
