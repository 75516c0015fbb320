"""What a chaos run was told, did, and found."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from benchflow_client.schema.base import Document


class Injection(Document):
    """One fault that was injected."""

    at_s: float = Field(description="Seconds since the job was submitted.")
    fault: str = Field(description="Name of the fault.")
    text: str = Field(description="What was done, to whom.")


class Invariant(Document):
    """Something that must hold after any fault."""

    name: str = Field(description="Short name.")
    holds: bool | None = Field(description="Whether it holds; None = it could not be looked at here.")
    text: str = Field(description="What was counted; for a broken one, the first places.")


class ChaosReport(Document):
    """What a chaos run did to its job and what came of it."""

    job: str = Field(description="Name of the job it ran.")
    seed: int = Field(description="Seed of every random choice: the same seed makes the same choices.")
    sandbox: str = Field(description="Kind of sandbox.")
    trials: int = Field(ge=1, description="Trials of the job.")
    started_at: datetime = Field(description="When the job was submitted (UTC).")
    took_s: float = Field(ge=0, description="From submission to the last look (s).")
    outcomes: dict[str, int] = Field(description="Outcome -> trials.")
    retried: int = Field(ge=0, description="Executions beyond the first of each trial.")
    planned: tuple[str, ...] = Field(default=(), description="Names of the faults that might come.")
    missed: tuple[str, ...] = Field(
        default=(), description="Flags of faults that were asked for and did not come."
    )
    injections: tuple[Injection, ...] = Field(description="Faults, in order of time.")
    invariants: tuple[Invariant, ...] = Field(description="What was checked.")

    @property
    def is_sound(self) -> bool:
        """Whether no invariant is broken."""
        return all(invariant.holds is not False for invariant in self.invariants)

    @property
    def is_proven(self) -> bool:
        """Whether no invariant is broken, and every fault that was asked for came."""
        return self.is_sound and not self.missed
