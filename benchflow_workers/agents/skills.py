"""Places skills in a sandbox and makes sure that the agent finds them, before its turn.

They stand once in a folder of root's; where the agent looks for skills there is a link to
each. The links are the agent's own: they are made as its user, so that nothing it put in
the way can lead root astray, and what is checked is what it can read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.schema.skills import SKILL_FILE
from benchflow_client.tasks.skills import skill_names, skill_problems
from benchflow_workers.agents.base import AgentContext, SkillSet
from benchflow_workers.agents.program import FIND_HOME
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import ROOT, Command, Sandbox, Upload

__all__ = ["KEPT_SKILLS", "SKILLS_VARIABLE", "open_workshop", "place_skills"]

KEPT_SKILLS: Final = "generated-skills"
"""Folder of an attempt with the skills its agent wrote."""

SKILLS_VARIABLE: Final = "BENCHFLOW_SKILLS_DIR"
"""Variable of the agent with the folder its skills stand in."""

_LIMIT_BYTES: Final = 64 << 20
"""Bytes of skills that are taken from a sandbox."""

_PLACE: Final = f"""
set -u
user=$1 target=$2 old=$3 paths=$4
shift 4
work=$(pwd)
{FIND_HOME}
status=0
while IFS= read -r path; do
  case $path in
    '$HOME'*) path=${{HOME-}}${{path#'$HOME'}} ;;
    '$WORKSPACE'*) path=$work${{path#'$WORKSPACE'}} ;;
  esac
  mkdir -p "$path"
  if [ -n "$old" ]; then
    for link in "$path"/*; do
      [ -L "$link" ] || continue
      case $(readlink "$link") in "$old"/*) rm -f "$link" ;; esac
    done
  fi
  for name do
    if ! [ "$path/$name" -ef "$target/$name" ]; then
      rm -rf "$path/$name"
      ln -s "$target/$name" "$path/$name"
    fi
    if ! [ -r "$path/$name/{SKILL_FILE}" ]; then
      echo "benchflow-skills: no $path/$name/{SKILL_FILE}"
      status=3
    fi
  done
done <<PATHS
$paths
PATHS
exit $status
"""

_WORKSHOP: Final = """
mkdir -p "$2" && chown "$1" "$2"
"""


async def place_skills(
    sandbox: Sandbox, context: AgentContext, *, timeout_s: float, before: SkillSet | None = None, keep: Path
) -> None:
    """Place the skills of a turn, in place of those of the turn before.

    Args:
        sandbox: Where the agent will work.
        context: The agent; without skills only those of before are taken from it.
        timeout_s: Seconds for it.
        before: Skills the turn before had.
        keep: Folder of the attempt on this host, for skills that were written in the sandbox.

    Raises:
        AgentError: `skills.not_placed`: not each is where the agent looks, or it cannot read it.
            `skills.not_written`: there are none in the sandbox, or none that could be placed.
        SandboxError: The sandbox failed under it.
    """
    skills = context.skills
    if skills is None:
        if before is not None:
            await _link(sandbox, context, before, old=before.target, timeout_s=timeout_s)
        return
    old = "" if before is None or before.target == skills.target else before.target
    with tempfile.TemporaryDirectory(prefix="bench-skills-") as room:
        source = skills.source or await _taken(sandbox, skills, Path(room) / "skills")
        if skills.is_kept:
            shutil.copytree(source, keep / KEPT_SKILLS, dirs_exist_ok=True)
        await sandbox.put([Upload(skills.target, source=source, mode=0o755)])
        await _link(sandbox, context, skills, *skill_names(source), old=old, timeout_s=timeout_s)


async def open_workshop(sandbox: Sandbox, folder: str, user: str, *, timeout_s: float) -> None:
    """Make the folder in which an agent is to write skills.

    Raises:
        SandboxError: `sandbox.start_failed`; what the sandbox raises.
    """
    argv = ("sh", "-c", _WORKSHOP, "benchflow-skills", user, folder)
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, user=ROOT, workdir="/"))
    if done.exit_code != 0 or done.timed_out:
        raise SandboxError(
            "sandbox.start_failed",
            f"{folder} could not be made for {user!r}: {tail_text(done.stderr, limit_chars=300)}",
            hint="Root must be able to write there.",
        )


async def _taken(sandbox: Sandbox, skills: SkillSet, folder: Path) -> Path:
    """Copy skills out of the sandbox, links left behind, readable for everybody."""
    try:
        is_there = await sandbox.get(skills.origin, folder, limit_bytes=_LIMIT_BYTES)
    except SandboxError as error:
        if error.code != "sandbox.transfer_failed":
            raise
        raise _not_written(skills, error.message) from error
    problems = skill_problems(folder) if is_there else ("there is no such folder",)
    if problems:
        raise _not_written(skills, "; ".join(problems))
    _open_up(folder)
    return folder


def _open_up(folder: Path) -> None:
    """Let everybody read all of a folder, as whoever wrote it may not have done."""
    for parent, _, names in os.walk(folder):
        Path(parent).chmod(0o755)
        for file in (Path(parent) / name for name in names):
            file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def _not_written(skills: SkillSet, reason: str) -> AgentError:
    return AgentError(
        "skills.not_written",
        f"The skills in {skills.origin} cannot be given to the agent: {reason}.",
        hint=f"Each is a folder there with a {SKILL_FILE}.",
    )


async def _link(
    sandbox: Sandbox, context: AgentContext, skills: SkillSet, *names: str, old: str, timeout_s: float
) -> None:
    """Link skills where the agent looks, as its user, see that it can read each, and take older links away."""
    home = {name: value for name, value in context.env.items() if name == "HOME"}
    user = "" if home else context.user
    argv = ("sh", "-c", _PLACE, "benchflow-skills", user, skills.target, old, "\n".join(skills.paths), *names)
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, user=context.user, env=home))
    if done.exit_code != 0 or done.timed_out:
        said = tail_text(done.stdout + done.stderr, limit_chars=1000).strip()
        raise AgentError(
            "skills.not_placed",
            f"Not every skill is where agent {context.spec.name!r} looks in the sandbox of task "
            f"{context.task.name!r}: {said or 'no answer'}",
            hint=f"The skills stand in {skills.target}; user {context.user!r} must be able to make links to them.",
        )
