"""The control that cheats: runs one trick of the catalog as the unprivileged user, and does no work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchflow_client.catalog.probe import Trick, find_trick
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun
from benchflow_workers.agents.turn import agent_run
from benchflow_workers.sandbox.base import Command, Sandbox, Upload

__all__ = ["ProbeAgent"]

TRICKS_DIR: Final = "/opt/benchflow/agent"
"""Folder of the trick's script in the sandbox; root's."""

TIMEOUT_S: Final = 120.0
"""A trick takes a second, on a busy host some; one that hangs is stopped like any agent."""

PROGRAM: Final = """
user=$1
while IFS=: read -r name _ id _ _ home _; do
  if [ "$name" = "$user" ] || [ "$id" = "$user" ]; then HOME=$home USER=$name LOGNAME=$name; break; fi
done </etc/passwd
export HOME USER LOGNAME BENCHFLOW_WORKDIR="$(pwd)"
exec sh "$2" 2>&1
"""
"""Sets the user's home and becomes the trick."""


class ProbeAgent:
    """Runs `probe:TRICK`."""

    @property
    def is_control(self) -> bool:
        """It checks the task and the sandbox, not an agent."""
        return True

    @property
    def runs_as_user(self) -> bool:
        """It has the rights of an agent and no more."""
        return True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the trick's script."""
        trick = find_trick(context.spec.name)
        return (Upload(_target(trick), content=trick.script.encode(), mode=0o555),)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Try the trick.

        Raises:
            SandboxError: The sandbox failed under it.
        """
        trick = find_trick(context.spec.name)
        command = Command(
            ("sh", "-c", PROGRAM, "benchflow-probe", context.user, _target(trick)),
            timeout_s=min(context.timeout_s or TIMEOUT_S, TIMEOUT_S),
            user=context.user,
            env={**context.env, "BENCHFLOW_INSTRUCTION": INSTRUCTION_PATH},
        )
        return agent_run(await sandbox.exec(command), kind="probe", command=f"sh {_target(trick)}")


def _target(trick: Trick) -> str:
    return f"{TRICKS_DIR}/{trick.name}.sh"
