"""Tests in a sandbox of their own: which image it has, what is asked of it, what is written down of it.

Called by the runner, which knows the order: measured before the agent, handed over after
it, opened when the agent's sandbox is gone, filled, and recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import TrialError, VerifierError
from benchflow_client.schema.compose import MAIN_SERVICE
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.separate import SeparateRecord, SeparateStatus
from benchflow_client.schema.task import NetworkMode, SandboxTable
from benchflow_client.tasks.digest import folder_digest
from benchflow_workers.agents.base import INSTRUCTION_PATH, LOGS_DIR
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import ROOT, Sandbox
from benchflow_workers.trial.artifacts import ARTIFACTS_DIR
from benchflow_workers.trial.carry import (
    Carried,
    Load,
    Route,
    deliver,
    measure,
    outside_writes,
    overload,
    pick_up,
)
from benchflow_workers.trial.networks import networks_of
from benchflow_workers.trial.records import Handover, Prepared, Rollout, Separate, TaskFolder
from benchflow_workers.trial.variables import resolve_templates, secret_references, secret_values
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR

__all__ = [
    "ended",
    "fill",
    "hand_over",
    "in_own_sandbox",
    "load_before",
    "open_separate",
    "refused",
    "with_separate",
]

_BASE_UPLOADS: Final = frozenset({"/logs", LOGS_DIR, VERIFIER_LOGS_DIR, ARTIFACTS_DIR, INSTRUCTION_PATH})
"""What of the agent's sandbox stands in this one too; its programs do not."""

_UNFIT: Final = frozenset({
    "sandbox.build_failed",
    "sandbox.image_missing",
    "task.unsupported",
    "agent.not_runnable",
})
"""What fails in every attempt alike: the image of the tests."""

_PREFIX: Final = "separate verifier: "
"""How the message of each failure of this sandbox begins."""


def with_separate(prepared: Prepared, spec: JobSpec, environ: Mapping[str, str]) -> Prepared:
    """Return what a rollout needs with the tests' own sandbox, where its task has one.

    Raises:
        AgentError: `agent.env_missing`: a variable of that sandbox has no value.
    """
    config = prepared.folder.task.config
    if not config.verifier.is_separate or not prepared.provider.capabilities.runs_commands:
        return prepared
    table = config.verifier.sandbox or config.sandbox
    env, secrets = prepared.sandbox.env, prepared.secrets
    if config.verifier.sandbox is not None:
        env = resolve_templates(table.env, environ, place="verifier.environment.env")
        secrets = secrets | secret_values(
            env, by_reference=tuple(secret_references(table.env)), environ=environ
        )
    image = _image(prepared.folder)
    first = prepared.sandbox
    sandbox = replace(
        first,
        name=f"{first.name}-v",
        image=image.name,
        build_context=image.context,
        build_digest=image.digest,
        build_timeout_s=table.build_timeout_sec * spec.timeout_multiplier,
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        storage_mb=table.storage_mb,
        gpus=table.gpus if prepared.provider.capabilities.has_gpus else 0,
        network=_network(prepared, table),
        has_changing_network=False,
        keeps_entrypoint=False,
        env=env,
        uploads=tuple(upload for upload in first.uploads if upload.target in _BASE_UPLOADS),
        mounts=(),
        services=None,
    )
    separate = Separate(sandbox, image.source, spec.separate_verifier_include)
    return replace(prepared, separate=separate, secrets=secrets)


def in_own_sandbox(prepared: Prepared) -> Prepared:
    """Return what the tests need in their own sandbox."""
    return replace(prepared, sandbox=_separate(prepared).sandbox, separate=None)


async def load_before(prepared: Prepared, sandbox: Sandbox) -> Load | None:
    """Return what there would be to carry before the agent came; None = the tests have no sandbox of their own.

    Raises:
        SandboxError: The sandbox cannot say it.
    """
    if prepared.separate is None:
        return None
    return await measure(sandbox, _route(prepared, sandbox), timeout_s=_setup_s(prepared))


async def hand_over(prepared: Prepared, sandbox: Sandbox, room: Path, before: Load) -> Handover:
    """Stop the agent for good and copy its work to this host.

    Args:
        prepared: The task.
        sandbox: The agent's.
        room: New folder on this host.
        before: What there was to carry before the agent.

    Raises:
        VerifierError: `verifier.separate_failed`; `verifier.separate_unfit` when it was too much before the agent.
    """
    route = _route(prepared, sandbox)
    with _told():
        if prepared.verify_context.agent_user is not None:
            await sandbox.kill(prepared.verify_context.agent_user)
        too_much = overload(await measure(sandbox, route, timeout_s=_setup_s(prepared)))
        if too_much and overload(before):
            raise VerifierError(
                "verifier.separate_unfit",
                f"{_PREFIX}before the agent began there was more than can be moved: {overload(before)}.",
                hint="Let the tests run where the agent works, or give the task a smaller workspace.",
            )
        writes = await outside_writes(sandbox, route, timeout_s=_setup_s(prepared))
        carried = None
        if not too_much:
            carried = await pick_up(sandbox, route, room, timeout_s=_setup_s(prepared))
    return Handover(sandbox.workdir, carried, too_much, writes)


async def open_separate(prepared: Prepared, handover: Handover) -> Sandbox:
    """Start the tests' own sandbox.

    Raises:
        VerifierError: `verifier.separate_failed`, `verifier.separate_unfit`.
    """
    with _told():
        return await prepared.provider.open(replace(_separate(prepared).sandbox, workdir=handover.workdir))


async def fill(prepared: Prepared, sandbox: Sandbox, handover: Handover, room: Path) -> None:
    """Make the agent's user, as beside the agent, and place what it left.

    Raises:
        VerifierError: `verifier.separate_failed`, `verifier.separate_unfit`.
    """
    user = prepared.verify_context.agent_user
    with _told():
        if user is not None and user != ROOT:
            await prepare_user(sandbox, user, workdir=sandbox.workdir, timeout_s=_setup_s(prepared))
        if handover.carried is not None:
            await deliver(sandbox, handover.carried, room)


def refused(prepared: Prepared, rollout: Rollout, handover: Handover) -> Rollout:
    """Return the verdict on work that is larger than what may be moved: 0, since it was not before the agent."""
    warning = (
        f"The tests did not run: the agent left more than can be moved into their own sandbox "
        f"({handover.too_much}), and before it there was less. The reward is 0."
    )
    judged = replace(rollout, rewards={"reward": 0.0}, test_output=b"", warnings=(*rollout.warnings, warning))
    return ended(prepared, judged, "refused", handover=handover, reason=handover.too_much)


def ended(
    prepared: Prepared,
    rollout: Rollout,
    status: SeparateStatus,
    *,
    handover: Handover | None = None,
    reason: str = "",
    sandbox: Sandbox | None = None,
) -> Rollout:
    """Return the rollout with the record of the tests' own sandbox, whose failures say whose they are.

    Args:
        prepared: The task.
        rollout: What the attempt has come to.
        status: How far that sandbox came.
        handover: What it was given; None = nothing was handed over.
        reason: Why it came no farther; empty = the last failure says it, if there is one.
        sandbox: The sandbox; None = it never started.
    """
    failures = tuple(map(_prefixed, rollout.failures))
    why = failures[-1].message if failures and status != "complete" else ""
    record = _record(prepared, status, reason or why, handover)
    record = record.model_copy(
        update={
            "sandbox_id": None if sandbox is None else sandbox.id,
            "sandbox_seconds": round(rollout.seconds.get("verifier_sandbox_total", 0.0), 3),
        }
    )
    if handover is not None and handover.carried is not None:
        rollout = _with_carried(rollout, handover.carried)
    return replace(rollout, failures=failures, separate=record, handover=None)


def _with_carried(rollout: Rollout, carried: Carried) -> Rollout:
    """Return the rollout with what is to be known of work that was carried; a kept workspace is not all of it."""
    frozen, warnings = rollout.frozen, (*rollout.warnings, *carried.warnings())
    if frozen is not None and frozen.is_whole and carried.beside():
        frozen = frozen.model_copy(update={"left_out": carried.beside()})
        warnings = (*warnings, f"Only the workspace was kept, and not {', '.join(frozen.left_out)}.")
    return replace(rollout, frozen=frozen, warnings=warnings)


def _record(
    prepared: Prepared, status: SeparateStatus, reason: str, handover: Handover | None
) -> SeparateRecord:
    writes = None if handover is None else handover.writes
    carried = None if handover is None else handover.carried
    return SeparateRecord(
        image_source=_separate(prepared).image_source,
        status=status,
        reason=reason,
        transfer=() if carried is None else carried.records(),
        outside_workspace_writes=None if writes is None else writes[0],
        outside_workspace_count=None if writes is None else writes[1],
        pristine=not _separate(prepared).includes,
    )


def _route(prepared: Prepared, sandbox: Sandbox) -> Route:
    config = prepared.folder.task.config
    declared = [artifact.source for artifact in config.artifacts if artifact.service == MAIN_SERVICE]
    return Route.of(
        sandbox.workdir,
        artifacts=(ARTIFACTS_DIR, *declared, *config.verifier.submission_files),
        includes=_separate(prepared).includes,
    )


def _separate(prepared: Prepared) -> Separate:
    if prepared.separate is None:
        raise VerifierError("trial.unexpected", "The tests of this task have no sandbox of their own.")
    return prepared.separate


def _setup_s(prepared: Prepared) -> float:
    return prepared.verify_context.setup_timeout_s


@contextmanager
def _told() -> Generator[None, None, None]:
    """Turn what a sandbox raises into failures of the tests' own."""
    try:
        yield
    except VerifierError:
        raise
    except TrialError as error:
        code = "verifier.separate_unfit" if error.code in _UNFIT else "verifier.separate_failed"
        raise VerifierError(code, f"{_PREFIX}{error.message}", hint=error.hint) from error


def _prefixed(failure: Failure) -> Failure:
    if FAILURES[failure.code].category != "verifier_infra" or failure.message.startswith(_PREFIX):
        return failure
    return failure.model_copy(update={"message": f"{_PREFIX}{failure.message}"})


@dataclass(frozen=True, slots=True)
class _Image:
    source: str
    name: str | None
    context: Path | None
    digest: str


def _image(folder: TaskFolder) -> _Image:
    """Return the tests' image: named for them, the agent's, built beside the tests, built for the agent."""
    task = folder.task
    table, agents = task.config.verifier.sandbox, task.config.sandbox.docker_image
    if table is not None and table.docker_image is not None:
        return _Image("verifier.sandbox.docker_image", table.docker_image, None, folder.environment_digest)
    if table is None and agents is not None:
        return _Image("sandbox.docker_image", agents, None, folder.environment_digest)
    tests = folder.path / (task.verifier_dir or "tests")
    if (tests / "Dockerfile").is_file():
        return _Image(f"{tests.name}/Dockerfile", None, tests, folder_digest(tests))
    if agents is not None and not task.has_dockerfile:
        return _Image("sandbox.docker_image", agents, None, folder.environment_digest)
    return _Image("environment/Dockerfile", None, folder.path / "environment", folder.environment_digest)


def _network(prepared: Prepared, table: SandboxTable) -> NetworkMode:
    """Return the network of the tests: their own, their sandbox's, or as beside the agent."""
    config = prepared.folder.task.config
    if config.verifier.network_mode is None and config.verifier.sandbox is not None:
        return table.network_mode
    return networks_of(config).verifier.mode
