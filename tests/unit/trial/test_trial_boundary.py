"""Whatever escapes a phase becomes a failure with a code; only being told to stop passes through."""

from __future__ import annotations

import asyncio
import logging

import pytest

from benchflow_client.errors import (
    AgentError,
    BrokerError,
    MissingExtraError,
    SandboxError,
    StoreFullError,
    TaskError,
    UnknownAgentError,
    VerifierError,
)
from benchflow_client.schema.failure import Failure
from benchflow_workers.trial.boundary import Boundary, failure_of, with_failure
from benchflow_workers.trial.records import Rollout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SandboxError("sandbox.start_failed", "No."), "sandbox.start_failed"),
        (AgentError("agent.no_solution", "No."), "agent.no_solution"),
        (VerifierError("verifier.no_tests", "No."), "verifier.no_tests"),
        (StoreFullError("No."), "store.write_failed"),
        (TaskError("No."), "task.unreadable"),
        (UnknownAgentError("No."), "agent.not_runnable"),
        (MissingExtraError("sandbox 'docker'", "docker"), "sandbox.unavailable"),
        (BrokerError("No."), "broker.unreachable"),
        (ZeroDivisionError("No."), "trial.unexpected"),
    ],
)
def test_every_error_has_a_code_of_the_catalogue(error: Exception, code: str) -> None:
    assert failure_of(error).code == code


@pytest.mark.parametrize("code", ["sandbox.lost", "sandbox.exec_failed", "sandbox.transfer_failed"])
def test_sandbox_that_fails_during_verification_is_told_apart(code: str) -> None:
    error = SandboxError(code, "Gone.")

    assert failure_of(error).code == code
    assert failure_of(error, is_verifying=True).code == "verifier.sandbox_lost"


def test_first_line_is_the_message_and_the_rest_is_detail() -> None:
    failure = failure_of(SandboxError("sandbox.start_failed", "It broke.\nline 1\nline 2", hint="Mend it."))

    assert (failure.message, failure.detail, failure.hint) == ("It broke.", "line 1\nline 2", "Mend it.")


def test_error_nobody_expected_is_recorded_and_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deep() -> None:
        raise KeyError("surprise")

    with pytest.raises(KeyError) as caught:
        deep()
    with caplog.at_level(logging.ERROR):
        failure = failure_of(caught.value)

    assert failure.message == "KeyError: 'surprise'"
    assert "in deep" in failure.detail
    assert "in deep" in caplog.text


async def test_block_goes_on_after_what_it_caught() -> None:
    async with Boundary(is_verifying=True) as boundary:
        raise SandboxError("sandbox.lost", "Gone.")

    assert boundary.failure is not None
    assert boundary.failure.code == "verifier.sandbox_lost"


async def test_block_without_an_error_has_no_failure() -> None:
    async with Boundary() as boundary:
        pass

    assert boundary.failure is None


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_being_told_to_stop_is_no_failure(kind: type[BaseException]) -> None:
    boundary = Boundary()

    with pytest.raises(kind):
        async with boundary:
            raise kind

    assert boundary.failure is None


def test_failures_are_kept_in_order() -> None:
    first, second = Failure(code="agent.timeout", message="a"), Failure(code="verifier.timeout", message="b")

    rollout = with_failure(with_failure(with_failure(Rollout(), first), None), second)

    assert rollout.failures == (first, second)
