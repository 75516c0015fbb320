"""The spans of one attempt: the trial, and below it one phase after the other."""

from __future__ import annotations

from benchflow_client.schema.trial import TrialResult
from benchflow_workers.telemetry.base import CURRENT, Attributes, Telemetry
from benchflow_workers.trial.records import Attempt

__all__ = ["AttemptSpans"]


class AttemptSpans:
    """Begins and ends the spans of an attempt; a phase lasts until the next one begins.

    Args:
        telemetry: Takes them.
        attempt: The attempt.
    """

    def __init__(self, telemetry: Telemetry, attempt: Attempt) -> None:
        trial = attempt.trial
        about: Attributes = {
            "bf.job": attempt.plan.job,
            "bf.trial": trial.id,
            "bf.attempt": attempt.number,
            "bf.task": trial.task.name,
            "bf.agent": trial.agent.label,
            "bf.try": trial.try_number,
            "bf.sandbox": attempt.plan.sandbox,
        }
        self._trial = telemetry.begin("trial", about)
        self._phase = self._trial

    def phase(self, name: str) -> None:
        """Begin a phase; what this task and those it starts do from now on belongs to it."""
        self._end_phase()
        self._phase = self._trial.begin(name, {})
        CURRENT.set(self._phase)

    def end(self, result: TrialResult) -> None:
        """End with what the attempt came to; only the first end counts."""
        code = result.failures[0].code if result.failures else ""
        self._end_phase()
        self._trial.end({"bf.outcome": result.outcome.value, "bf.reward": result.reward}, error=code)

    def stop(self, reason: str) -> None:
        """End without a result; only the first end counts."""
        self._end_phase()
        self._trial.end({}, error=reason)

    def _end_phase(self) -> None:
        if self._phase is not self._trial:
            self._phase.end({})
