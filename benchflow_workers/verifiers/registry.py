"""From what a task says about its verifier to the verifier that runs it; imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task
from benchflow_workers.verifiers.base import Verifier

__all__ = ["verifier_of"]

_BY_TYPE = {"test-script": "benchflow_workers.verifiers.script:ScriptVerifier"}


def verifier_of(task: Task) -> Verifier:
    """Return the verifier a task asks for.

    Raises:
        VerifierError: `task.unsupported` for a kind that is not installed here.
    """
    place = _BY_TYPE.get(task.config.verifier.type)
    if place is None:
        raise VerifierError(
            "task.unsupported",
            f"Task {task.name!r} asks for verifier.type {task.config.verifier.type!r}; "
            f"here is only {', '.join(sorted(_BY_TYPE))}.",
            hint="Run it with a worker that has this kind of verifier.",
        )
    module, _, name = place.partition(":")
    return cast("Verifier", getattr(import_module(module), name)())
