"""Every error the product raises on purpose, in one tree.

BenchflowError                    something a person must read; has a hint
├── UsageError                    exit 2: the request cannot be understood
│   ├── JobSpecError              a flag, YAML key or argument is wrong
│   ├── TaskError                 task folders that cannot be read
│   ├── SourceError               a task source that cannot be found or fetched
│   ├── UnknownAgentError         no agent of that name
│   ├── AgentManifestError        the description of an agent is wrong
│   ├── JobNotFoundError          no job of that name
│   ├── JobExistsError            the name is taken
│   └── MissingExtraError         an optional part is not installed
├── ResumeMismatchError           exit 1: a job to resume is not the job asked for
├── InfrastructureError           exit 3: the request is fine, the world is not
│   ├── BrokerError               broker or ledger unreachable or refusing
│   ├── StoreError                the store cannot be read or written
│   │   ├── ObjectNotFoundError   no document under that key
│   │   ├── ObjectExistsError     a write-once key is already written
│   │   └── StoreFullError        no space left
│   └── WorkerError               a worker cannot start
└── TrialError                    ends one trial; becomes a Failure record
    ├── SandboxError              build, start, exec, transfer
    ├── AgentError                the agent could not be run
    └── VerifierError             no verdict could be reached
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AgentError",
    "AgentManifestError",
    "BenchflowError",
    "BrokerError",
    "InfrastructureError",
    "JobExistsError",
    "JobNotFoundError",
    "JobSpecError",
    "MissingExtraError",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ResumeMismatchError",
    "SandboxError",
    "SourceError",
    "StoreError",
    "StoreFullError",
    "TaskError",
    "TrialError",
    "UnknownAgentError",
    "UsageError",
    "VerifierError",
    "WorkerError",
]


class BenchflowError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: What happened, with the value and the place, and why.
        hint: What to do about it, as one or two sentences; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BenchflowError):
    """The request itself is wrong; nothing was started."""

    exit_code = 2


class JobSpecError(UsageError):
    """A flag, YAML key or Python argument of a job is wrong."""


class TaskError(UsageError):
    """One or more task folders cannot be read.

    Args:
        message: Summary of what is wrong.
        problems: One line per problem, each naming file and key.
        hint: What to do.
    """

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class SourceError(UsageError):
    """A task source does not exist or cannot be fetched."""


class UnknownAgentError(UsageError):
    """No agent of that name is registered."""


class AgentManifestError(UsageError):
    """A file that describes an agent cannot be read, or describes none."""


class JobNotFoundError(UsageError):
    """No job matches the given name or prefix."""


class JobExistsError(UsageError):
    """A job of that name exists already."""


class MissingExtraError(UsageError):
    """An optional part of the product is not installed.

    Args:
        feature: What was asked for, e.g. ``"sandbox 'docker'"``.
        extra: Name of the extra that brings it.
    """

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs an extra that is not installed.",
            hint=f"Run: pip install 'benchflow-workers[{extra}]'",
        )
        self.extra = extra


class ResumeMismatchError(BenchflowError):
    """A job that was to be resumed differs from what was asked for; nothing was changed.

    Args:
        message: Which job.
        problems: One line per key that differs, with its old and its new value.
        hint: What to do.
    """

    def __init__(self, message: str, *, problems: tuple[str, ...], hint: str) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class InfrastructureError(BenchflowError):
    """The request is fine, but something it needs is not."""

    exit_code = 3


class BrokerError(InfrastructureError):
    """The broker (or the ledger on it) cannot be reached or refuses."""


class StoreError(InfrastructureError):
    """The store cannot be read or written."""


class ObjectNotFoundError(StoreError):
    """No document exists under the key."""


class ObjectExistsError(StoreError):
    """A write-once key is already written."""


class StoreFullError(StoreError):
    """The store has no space left."""


class WorkerError(InfrastructureError):
    """A worker cannot start or cannot keep running."""


class TrialError(BenchflowError):
    """Ends one trial without a verdict.

    Args:
        code: A key of ``catalog.failures.FAILURES``, e.g. ``"sandbox.start_failed"``;
            everything that decides (retry, bucket, advice) reads the code, never the text.
        message: What happened, for a person.
        hint: What to do about it.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class SandboxError(TrialError):
    """A sandbox could not be built, started, used or was lost."""


class AgentError(TrialError):
    """An agent could not be run at all."""


class VerifierError(TrialError):
    """The verifier reached no verdict."""
