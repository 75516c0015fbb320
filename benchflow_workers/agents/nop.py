"""The control that does nothing: what a task gives for no work."""

from __future__ import annotations

from collections.abc import Sequence

from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.sandbox.base import Sandbox, Upload

__all__ = ["NopAgent"]


class NopAgent:
    """Runs nothing."""

    @property
    def is_control(self) -> bool:
        """It checks the task, not an agent."""
        return True

    @property
    def runs_as_user(self) -> bool:
        """Nothing runs, so no user is needed."""
        return False

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files."""
        del context
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """End at once, without touching the sandbox."""
        del sandbox, context
        return AgentRun(exit_code=None, timed_out=False)
