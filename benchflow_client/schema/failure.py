"""Why a trial has no verdict, as data."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from benchflow_client.schema.base import Document


class Fault(StrEnum):
    """Who has to act."""

    TASK = "task"  # the task's author
    AGENT = "agent"  # the agent under test; nothing to repair
    INFRASTRUCTURE = "infrastructure"  # whoever runs the fleet
    SETUP = "setup"  # whoever submitted the job: keys, images, extras


class Failure(Document):
    """One recorded failure of a trial.

    Everything that decides reads `code`; `message` and `detail` are for people.
    """

    code: str = Field(description="Key of catalog.failures.FAILURES, e.g. `sandbox.start_failed`.")
    message: str = Field(description="What happened and where, redacted.")
    hint: str = Field(default="", description="What to do; empty = the catalog's advice.")
    detail: str = Field(default="", description="Tail of the output that shows it, redacted; may be empty.")

    retry_after_s: float | None = Field(
        default=None, ge=0, description="Seconds a provider asks to wait; None = it did not say."
    )

    @property
    def boundary(self) -> str:
        """Return the part that failed: the code's first word."""
        return self.code.partition(".")[0]
