"""Verifying again what an agent left when only the verifier failed: what is kept for it, and its record."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from benchflow_client.schema.base import Document
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import AgentUsage, FrozenWorkspace

__all__ = ["SOLVER_COMPLETE", "RecoveryRecord", "SolverComplete", "recovery_name"]

SOLVER_COMPLETE = "solver-complete.json"
"""File of an attempt; its presence means that the agent's part is over and its work is in the store."""


class SolverComplete(Document):
    """solver-complete.json: the agent has finished, and what it left is kept."""

    trial: str = Field(description="Trial id.")
    folder: str = Field(description="Folder of the attempt in which the agent worked.")
    attempt: int = Field(ge=1, description="Which execution of the trial that was.")
    finished_at: datetime = Field(description="End of the agent's part (UTC).")
    exit_code: int | None = Field(default=None, description="Its exit code; None = none or killed.")
    failures: tuple[Failure, ...] = Field(default=(), description="What went wrong in its part.")
    usage: AgentUsage = Field(description="What it used.")
    frozen: FrozenWorkspace = Field(description="What it left.")
    warnings: tuple[str, ...] = Field(default=(), description="What is not as the agent left it.")


class RecoveryRecord(Document):
    """recovery.json: a verdict, or none, on what an earlier attempt's agent left."""

    status: Literal["complete", "failed"] = Field(description="Whether there is a verdict now.")
    solver_folder: str = Field(description="Folder of the attempt in which the agent worked.")
    original_error: str | None = Field(
        description="Why the attempt before reached no verdict; None = it left no result, as its worker died."
    )
    evidence: FrozenWorkspace = Field(description="What was judged.")
    evidence_folder: str = Field(description="Folder of the attempt that holds it.")
    solver_replayed: bool = Field(default=False, description="The agent never runs again.")
    recovered_rewards: dict[str, Any] | None = Field(description="The verdict; None = none.")


def recovery_name(folder: str) -> str:
    """Return the place of a record below the attempt that judged, by the folder whose work it judged."""
    return f"verifier-recovery/{folder}/recovery.json"
