"""What a verifier is to a trial: it runs the tests, then reads a verdict from what they left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.task import Task
from benchflow_workers.sandbox.base import Completed, Sandbox

VERIFIER_LOGS_DIR = "/logs/verifier"
"""Folder in the sandbox for reward files and the tests' output."""

FINAL_MESSAGE = "/opt/benchflow/final-message.txt"
"""File in the sandbox, root's, with what the agent said last; it is there while the tests run."""


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """What a verifier may know about its trial.

    Attributes:
        task: The task.
        task_dir: Its unpacked folder on the worker.
        env: Resolved verifier variables.
        timeout_s: Seconds for the tests, multiplier applied.
        setup_timeout_s: Seconds shared by all hardening and preparation.
        agent_user: User whose processes must be gone before the tests; None = no
            agent ran as a user of its own.
        message: What the agent said last; None = nobody knows, as of work that is judged again.
    """

    task: Task
    task_dir: Path
    env: Mapping[str, str]
    timeout_s: float
    setup_timeout_s: float
    agent_user: str | None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests say.

    Attributes:
        rewards: `reward` and named numbers, rubric, metrics; None = no verdict.
        failure: Why there is no verdict; None when there is one.
        warnings: What a reader of the number should know.
    """

    rewards: Mapping[str, Any] | None
    failure: Failure | None
    warnings: Sequence[str] = ()


class Verifier(Protocol):
    """One kind of verifier; stateless, so one object serves every trial of a worker."""

    async def run(self, sandbox: Sandbox, context: VerifyContext) -> Completed:
        """Stop what the agent left, place the tests, run them.

        The tests' files are in the sandbox only from here on. Whatever they
        leave below `/logs` is collected by the trial afterwards.

        Raises:
            VerifierError: `verifier.no_tests`, `verifier.harden_failed`.
            SandboxError: The sandbox failed under it.
        """
        ...

    def judge(self, context: VerifyContext, run: Completed, logs: Path) -> Verdict:
        """Read the verdict.

        Args:
            context: As given to `run`.
            run: What `run` returned.
            logs: Folder on the worker that holds what was in `/logs/verifier`.

        Returns:
            A verdict, or the failure that says why there is none; never raises for
            anything the tests wrote.
        """
        ...


@runtime_checkable
class SoftVerifier(Protocol):
    """A verifier that can also look at the work while the agent is not done."""

    async def check(self, sandbox: Sandbox, context: VerifyContext, logs: Path) -> Completed:
        """Run the tests between two rounds, and leave nothing of them that the agent could read.

        Nothing of the agent's is killed and nothing changes its owner. What the tests wrote
        below `/logs/verifier` is copied into `logs` on the worker.

        Raises:
            VerifierError: `verifier.no_tests`; `verifier.harden_failed` or `verifier.sandbox_lost`
                when the sandbox is not fit for another round.
            SandboxError: The sandbox failed under it.
        """
        ...

    def judge(self, context: VerifyContext, run: Completed, logs: Path) -> Verdict:
        """Read what the tests gave, as `Verifier.judge`."""
        ...
