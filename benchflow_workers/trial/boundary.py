"""The one place where anything that escapes a phase becomes a recorded failure."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import replace
from typing import Final

from benchflow_client.errors import (
    BenchflowError,
    BrokerError,
    MissingExtraError,
    StoreError,
    TaskError,
    TrialError,
    UnknownAgentError,
)
from benchflow_client.schema.failure import Failure
from benchflow_workers.trial.records import Rollout

logger = logging.getLogger(__name__)

_DETAIL_LINES: Final = 15
_IN_VERIFICATION: Final = {
    "sandbox.lost": "verifier.sandbox_lost",
    "sandbox.exec_failed": "verifier.sandbox_lost",
    "sandbox.transfer_failed": "verifier.sandbox_lost",
}
"""What a sandbox failure is called when it cost a verdict and not the agent's turn."""

_BY_TYPE: Final[tuple[tuple[type[BenchflowError], str], ...]] = (
    (StoreError, "store.write_failed"),
    (BrokerError, "broker.unreachable"),
    (TaskError, "task.unreadable"),
    (UnknownAgentError, "agent.not_runnable"),
    (MissingExtraError, "sandbox.unavailable"),
)
"""What errors are called that were not made for trials."""


class Boundary:
    """Collects failures: an async context manager that swallows and remembers what escapes.

    Cancellation passes through: it is how a trial is told to stop.

    Args:
        is_verifying: The phase belongs to the verifier's side.
    """

    def __init__(self, *, is_verifying: bool = False) -> None:
        self._is_verifying = is_verifying
        self.failure: Failure | None = None

    async def __aenter__(self) -> Boundary:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> bool:
        if error is None or isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
            return False
        self.failure = failure_of(error, is_verifying=self._is_verifying)
        return True


def failure_of(error: Exception, *, is_verifying: bool = False) -> Failure:
    """Return the record of an error; an error nobody expected is recorded as a bug of ours."""
    if isinstance(error, TrialError):
        code = _IN_VERIFICATION.get(error.code, error.code) if is_verifying else error.code
        message, _, detail = error.message.partition("\n")
        return Failure(code=code, message=message, hint=error.hint, detail=detail)
    for kind, code in _BY_TYPE:
        if isinstance(error, kind):
            return Failure(code=code, message=error.message, hint=error.hint)
    logger.exception("unexpected error in a trial", exc_info=error, extra={"action": "trial_bug"})
    tail = traceback.format_exception(error)[-_DETAIL_LINES:]
    return Failure(code="trial.unexpected", message=f"{type(error).__name__}: {error}", detail="".join(tail))


def with_failure(rollout: Rollout, failure: Failure | None) -> Rollout:
    """Return the rollout with one more failure, or as it is where there is none."""
    return rollout if failure is None else replace(rollout, failures=(*rollout.failures, failure))
