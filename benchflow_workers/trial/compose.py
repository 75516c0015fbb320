"""Fills in a task's compose file on the worker and adds its services to what a rollout asks for."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from benchflow_client.errors import AgentError, SandboxError
from benchflow_client.schema.compose import MAIN_SERVICE, Compose, Mount, Service
from benchflow_client.schema.skills import BUNDLED_SKILLS
from benchflow_client.schema.task import Task
from benchflow_client.tasks.compose import compose_lookup, resolve_compose
from benchflow_client.tasks.compose_variables import (
    Lookup,
    TemplateError,
    VariableError,
    fill_in,
    read_env_file,
)
from benchflow_client.tasks.text import peek_text
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.sandbox.services_spec import ServicesSpec
from benchflow_workers.trial.records import TaskFolder

_SKILLS = posixpath.basename(BUNDLED_SKILLS)


def with_services(spec: SandboxSpec, folder: TaskFolder) -> SandboxSpec:
    """Return what a rollout asks for with the services of its task, if it has any.

    What the file says of `main` wins over the task file, as with the compose program.

    Raises:
        AgentError: `agent.env_missing`: a variable has no value; only those the task declares are known.
        SandboxError: `task.unsupported`: a value that came from a variable is none of its kind.
    """
    file = folder.task.compose
    if file is None:
        return spec
    try:
        lookup = compose_lookup(
            folder.path, folder.task.config, spec.env, verifier_dir=folder.task.verifier_dir
        )
        compose = _without_skills(resolve_compose(file, lookup), folder.path / "environment")
        by_plugin = fill_in(file.by_plugin, lookup)
        env = {
            name: _environment(service, folder.path / "environment", lookup)
            for name, service in compose.services.items()
        }
    except (VariableError, TemplateError, ValidationError) as error:
        raise _not_filled_in(folder.task, file.file, error) from error
    services = ServicesSpec(
        compose=compose,
        folder=folder.path / "environment",
        env={**env, MAIN_SERVICE: {**spec.env, **env[MAIN_SERVICE]}},
        digest=folder.environment_digest,
        by_plugin=by_plugin,
        needs_plugin=file.needs_plugin,
    )
    return _with_main(replace(spec, services=services), compose.main, services.env[MAIN_SERVICE])


def _without_skills(compose: Compose, folder: Path) -> Compose:
    """Return services without mounts of the task's own skills, where these are left out."""

    def is_left(mount: Mount) -> bool:
        path = posixpath.normpath(mount.source)
        return mount.type != "bind" or path.split("/")[0] != _SKILLS or (folder / path).exists()

    services = {
        name: service.model_copy(update={"volumes": tuple(filter(is_left, service.volumes))})
        for name, service in compose.services.items()
    }
    return compose.model_copy(update={"services": services})


def _with_main(spec: SandboxSpec, main: Service, env: Mapping[str, str]) -> SandboxSpec:
    return replace(
        spec,
        env=env,
        cpus=main.cpus or spec.cpus,
        memory_mb=main.mem_limit >> 20 if main.mem_limit else spec.memory_mb,
        pids=main.pids_limit or spec.pids,
        workdir=spec.workdir or main.working_dir,
    )


def _environment(service: Service, folder: Path, lookup: Lookup) -> dict[str, str]:
    """Return a service's variables: those of its files, then its own; a bare name takes what is known."""
    found: dict[str, str] = {}
    for file in service.env_file:
        found |= read_env_file(peek_text(folder / posixpath.normpath(file)) or "", lookup)
    for name, value in service.environment.items():
        known = lookup(name) if value is None else value
        found |= {} if known is None else {name: known}
    return found


def _not_filled_in(task: Task, file: str, error: Exception) -> AgentError | SandboxError:
    if isinstance(error, VariableError):
        return AgentError(
            "agent.env_missing",
            f"{file} of task {task.name!r} needs the variable {error.name}: {error}.",
            hint=f"Declare it in environment.env of the task ({error.name} = "
            f'"${{{error.name}}}" takes the worker\'s), or give a default in the file.',
        )
    reason = str(error)
    if isinstance(error, ValidationError):
        reason = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)
        )
    return SandboxError(
        "task.unsupported",
        f"{file} of task {task.name!r} cannot be run with this worker's variables: {reason}.",
        hint="Correct the value in environment.env of the task, or on the worker.",
    )
