"""Tests in a sandbox of their own: which tasks have one, and what cannot be together with it."""

from __future__ import annotations

from collections.abc import Iterator

from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.task import SandboxTable, Task
from benchflow_client.tasks.manifest import with_manifest

__all__ = ["as_run", "separate_reasons"]

_LISTS = frozenset({"allowlist", "denylist"})


def as_run(task: Task, spec: JobSpec) -> Task:
    """Return a task as a job runs it: with its services, and a sandbox of the tests' own where the job asks."""
    task = with_manifest(task, spec.environment_manifest)
    if not spec.separate_verifier or task.config.verifier.is_separate:
        return task
    verifier = task.config.verifier.model_copy(update={"sandbox_mode": "separate"})
    return task.model_copy(update={"config": task.config.model_copy(update={"verifier": verifier})})


def separate_reasons(task: Task) -> Iterator[tuple[str, str]]:
    """Yield why the tests of a task cannot have a sandbox of their own; nothing where they need none."""
    verifier = task.config.verifier
    if not verifier.is_separate:
        return
    if verifier.hardening.restore_workspace:
        yield (
            "verifier.hardening.restore_workspace",
            "a sandbox of the tests' own gets the workspace and no answer that is elsewhere",
        )
    if verifier.service != "main":
        yield "verifier.service", "no service runs beside tests in a sandbox of their own"
    if task.has_compose and verifier.sandbox is None:
        yield (
            "environment/docker-compose.yaml",
            "its services do not run beside tests in a sandbox of their own; declare verifier.sandbox",
        )
    manifest = task.manifest
    if (
        manifest is not None
        and (manifest.services or manifest.has_own_entrypoint)
        and verifier.sandbox is None
    ):
        yield (
            "environment manifest",
            "its services do not run beside tests in a sandbox of their own; declare verifier.sandbox",
        )
    if verifier.sandbox is not None:
        yield from _table(verifier.sandbox, task.config.sandbox)


def _table(table: SandboxTable, agents: SandboxTable) -> Iterator[tuple[str, str]]:
    """Yield what a table of the tests' sandbox declares and is not done there."""
    place = "verifier.sandbox"
    if table.workdir not in {None, agents.workdir}:
        yield f"{place}.workdir", "the tests run where the agent worked; set sandbox.workdir"
    if table.network_mode in _LISTS:
        yield f"{place}.network_mode", "the tests' network is never filtered by a list"
    if table.os != "linux":
        yield f"{place}.os", f"{table.os} is not run; only linux is"
    for name in ("setup_commands", "healthcheck", "gpus", "tpu", "bugswarm_image_tag"):
        if getattr(table, name):
            yield f"{place}.{name}", "a sandbox of the tests' own has none"
