"""What a workspace was before the agent, for tasks that ask to have it back before their tests.

The copy and the build configuration stand in folders of root's that the agent cannot
enter; without a user of its own it could change them, so nothing is promised then.
"""

from __future__ import annotations

from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Command, Sandbox

__all__ = ["BASELINE", "BUILD_FILES", "BUILD_SNAPSHOT", "RESTORE", "take_baseline"]

BASELINE: Final = "/testbed_verify"
"""Copy of the workspace; one of the folders that are locked while the agent works."""

BUILD_SNAPSHOT: Final = "/opt/benchflow/build-snapshot"
"""Build configuration as it was. Below a folder of root's: in /tmp, where that is not sticky, it could be replaced."""

BUILD_FILES: Final = (
    "setup.py",
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "hatch.toml",
    "flit.ini",
    "MANIFEST.in",
    "requirements.txt",
    "requirements-dev.txt",
    "Makefile",
)
"""Files that installers and test tools run or obey; one that was absent is removed again."""

TAKE: Final = f"""
set -u
work=$1
rm -rf {BASELINE} {BUILD_SNAPSHOT}
mkdir -p {BASELINE} {BUILD_SNAPSHOT} && chmod 0700 {BASELINE} {BUILD_SNAPSHOT} || exit 97
cp -a "$work"/. {BASELINE}/ || exit 97
for name in {" ".join(BUILD_FILES)}; do
  if [ -f "$work/$name" ] && [ ! -L "$work/$name" ]; then cp -p "$work/$name" {BUILD_SNAPSHOT}/ || exit 97; fi
done
: >{BUILD_SNAPSHOT}/complete
"""

RESTORE: Final = f"""
[ -f {BUILD_SNAPSHOT}/complete ] && [ -d {BASELINE} ] || fail restore
find "$real" -mindepth 1 -maxdepth 1 -exec rm -rf {{}} + && cp -a {BASELINE}/. "$real"/ || fail restore
for name in {" ".join(BUILD_FILES)}; do
  if [ -L "$real/$name" ] || [ -f "$real/$name" ]; then rm -f "$real/$name"; fi
  if [ -f {BUILD_SNAPSHOT}/"$name" ]; then cp -p {BUILD_SNAPSHOT}/"$name" "$real/$name" || fail restore; fi
done
spared=$real
"""
"""Finds `real` and `fail`; says by `spared` that the workspace holds nothing of the agent's any more."""


async def take_baseline(sandbox: Sandbox, workdir: str, timeout_s: float) -> None:
    """Copy the workspace and its build configuration, before the agent's user is made.

    Raises:
        SandboxError: `sandbox.start_failed` when it cannot be copied in time; what the sandbox raises.
    """
    argv = ("sh", "-c", TAKE, "benchflow-baseline", workdir)
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, workdir="/"))
    if done.exit_code != 0:
        raise SandboxError(
            "sandbox.start_failed",
            f"The workspace {workdir!r} could not be copied before the agent: "
            f"{tail_text(done.stderr, limit_chars=300) or f'exit code {done.exit_code}'}",
            hint="Give the sandbox room for a second copy, or leave verifier.hardening.restore_workspace out.",
        )
