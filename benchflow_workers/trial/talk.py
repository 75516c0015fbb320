"""The record of who talks to an agent in rounds."""

from __future__ import annotations

from dataclasses import dataclass

from benchflow_client.schema.loop import LoopStrategy
from benchflow_workers.trial.session import Session
from benchflow_workers.users.base import User
from benchflow_workers.verifiers.base import SoftVerifier

__all__ = ["Talk"]


@dataclass(frozen=True, slots=True)
class Talk:
    """Rounds of a user or a loop, resolved before any sandbox exists.

    Attributes:
        user: Who says what is to be done.
        sessions: One for each turn of the task, in order; later rounds are the last one's.
        instruction: The task's own prompt.
        solution: Text of its solution; only a user with access to it is shown it.
        verifier: Looks at the work after each round; None = nobody does.
        loop: The strategy the user stands for; None = it is a user.
    """

    user: User
    sessions: tuple[Session, ...]
    instruction: str
    solution: str | None
    verifier: SoftVerifier | None
    loop: LoopStrategy | None = None

    def session(self, number: int) -> Session:
        """Return the session a round belongs to."""
        return self.sessions[min(number, len(self.sessions) - 1)]
