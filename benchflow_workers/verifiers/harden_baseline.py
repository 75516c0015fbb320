"""What a workspace was before the agent, for tasks that ask to have it back before their tests.

The copy and the build configuration stand in folders of root's that the agent cannot
enter; without a user of its own it could change them, so nothing is promised then.
"""

from __future__ import annotations

from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_workers.agents.build_files import BUILD_SNAPSHOT, KEEP_BUILD_FILES
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Command, Sandbox

__all__ = ["BASELINE", "RESTORE", "take_baseline"]

BASELINE: Final = "/testbed_verify"
"""Copy of the workspace; one of the folders that are locked while the agent works."""

TAKE: Final = f"""
set -u
{KEEP_BUILD_FILES}
work=$1
rm -rf {BASELINE}
mkdir -p {BASELINE} && chmod 0700 {BASELINE} || exit 97
cp -a "$work"/. {BASELINE}/ || exit 97
keep_build_files "$work" || exit 97
"""

RESTORE: Final = f"""
[ -f {BUILD_SNAPSHOT}/absent ] && [ -d {BASELINE} ] || fail restore
find "$real" -mindepth 1 -maxdepth 1 -exec rm -rf {{}} + && cp -a {BASELINE}/. "$real"/ || fail restore
while IFS= read -r name; do rm -f "$real/$name"; done <{BUILD_SNAPSHOT}/absent
for file in {BUILD_SNAPSHOT}/*; do
  case $file in */absent) continue ;; esac
  if [ -f "$file" ]; then rm -rf "$real/${{file##*/}}" && cp -p "$file" "$real"/ || fail restore; fi
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
