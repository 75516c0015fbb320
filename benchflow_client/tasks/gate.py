"""The capability gate: why a task cannot be run here, known before any sandbox is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from benchflow_client.schema.task import Task
from benchflow_client.schema.task_steps import step_config, step_tables
from benchflow_client.tasks.manifest import manifest_reasons
from benchflow_client.tasks.separate import separate_reasons
from benchflow_client.tasks.strategies import refusal

_MAIN = "main"
"""The service every sandbox has."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LISTS = frozenset({"allowlist", "denylist"})
"""Modes of the network that are lists of hosts."""

_DEFAULT_PATHS = frozenset({"verifier", "verifier/test.sh", "tests", "tests/test.sh"})
"""Values of the `verifier:` shorthand that mean what is run anyway."""

_PLAYED = ("agents", "scenes", "user")
"""Keys that make several turns of one."""

_BENCHFLOW_REASONS = {
    "teams": "teams are not run by this version",
    "agent_policy": "no back end keeps this policy",
    "runtime_policy": "no back end keeps this policy",
}


def unsupported(
    task: Task,
    *,
    networks: frozenset[str],
    has_compose: bool,
    has_gpus: bool,
    gpu_types: frozenset[str] | None = None,
) -> tuple[str, ...]:
    """Return why a task cannot be run on a sandbox with these abilities; empty when it can.

    Args:
        task: The task.
        networks: Network modes the sandbox enforces.
        has_compose: It runs images as they are, and services beside the main one.
        has_gpus: It has GPUs to give.
        gpu_types: Names of what its GPUs are; None = a host that has the right ones may come.

    Returns:
        One line per reason, each naming the key or file first. Ignoring any of
        them would change what the score means.
    """
    reasons = (
        *_artifacts(task),
        *_machine(task, has_compose=has_compose),
        *_gpus(task, gpu_types, has_gpus=has_gpus),
        *_networks(task, networks),
        *_preparation(task),
        *manifest_reasons(task, runs_images=has_compose),
        *_verifier(task),
        *_document(task.document),
    )
    reasons += tuple(reason for reason in _steps(task, networks) if reason not in reasons)
    return tuple(f"{path}: {reason}" for path, reason in reasons)


def _steps(task: Task, networks: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield why a step cannot be run, besides what holds for the whole task."""
    of_task = {*_networks(task, networks), *_verifier(task)}
    for index, step in enumerate(step_tables(task.config)):
        stepped = task.model_copy(update={"config": step_config(task.config, step)})
        own = task.model_copy(update={"config": task.config.model_copy(update={"artifacts": step.artifacts})})
        found = (*_networks(stepped, networks), *_verifier(stepped))
        new = (*((path, why) for path, why in found if (path, why) not in of_task), *_artifacts(own))
        yield from ((f"steps[{index}].{path}", why) for path, why in new)
        if stepped.config.verifier.is_separate:
            yield f"steps[{index}].verifier.sandbox", "the tests of a step run where its agent worked"
        if stepped.config.verifier.hardening.restore_workspace:
            yield f"steps[{index}].verifier.hardening.restore_workspace", "it would undo the steps before"
    if task.config.steps and any(task.document.get(key) for key in _PLAYED):
        yield "steps", "steps do not go together with roles, scenes or a user"


def _artifacts(task: Task) -> Iterator[tuple[str, str]]:
    for index, artifact in enumerate(task.config.artifacts):
        yield from _service(task, f"artifacts[{index}].service", artifact.service)


def _service(task: Task, path: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield why a service that is named cannot be meant: the task has none of that name."""
    has = list(task.compose.data["services"]) if task.compose is not None else [_MAIN]
    if name not in has:
        yield path, f"the task has no service {name!r}; it has {', '.join(has)}"


def _machine(task: Task, *, has_compose: bool) -> Iterator[tuple[str, str]]:
    sandbox = task.config.sandbox
    if task.has_compose and not has_compose:
        yield "environment/docker-compose.yaml", "this sandbox runs no services beside the main one"
    if task.compose is not None and has_compose:
        yield from ((place, why) for place, _, why in (line.partition(": ") for line in task.compose.refused))
    if sandbox.os != "linux":
        yield "sandbox.os", f"{sandbox.os} is not run; only linux is"
    if sandbox.tpu is not None:
        yield "sandbox.tpu", "no sandbox has TPUs"
    if sandbox.bugswarm_image_tag is not None:
        yield "sandbox.bugswarm_image_tag", "BugSwarm images are not fetched by this version"


def _gpus(task: Task, types: frozenset[str] | None, *, has_gpus: bool) -> Iterator[tuple[str, str]]:
    """Yield why the GPUs a task asks for are not here; types are compared whatever their case."""
    asked = task.config.sandbox
    if not asked.gpus:
        return
    if not has_gpus:
        yield "sandbox.gpus", f"{asked.gpus} asked for, and this sandbox has none"
    elif asked.gpu_types and types is not None:
        wanted, there = ", ".join(asked.gpu_types), ", ".join(sorted(types))
        if not {name.casefold() for name in types} & {name.casefold() for name in asked.gpu_types}:
            have = f"this worker has {there}" if types else "this worker does not say what its GPUs are"
            yield "sandbox.gpu_types", f"{wanted} asked for, and {have} (BENCHFLOW_GPU_TYPES)"


def _networks(task: Task, networks: frozenset[str]) -> Iterator[tuple[str, str]]:
    mode = task.config.sandbox.network_mode
    agent, verifier = task.config.agent.network_mode, task.config.verifier.network_mode
    kept = ", ".join(sorted(networks)) or "none"
    for place, asked in (("sandbox", mode), ("agent", agent)):
        if asked is not None and asked not in networks:
            yield (
                f"{place}.network_mode",
                f"this sandbox does not enforce {asked!r} on this host; it enforces {kept}",
            )
    if agent == "allowlist" and mode in {"no-network", "denylist"}:
        yield "agent.network_mode", f"an allowlist does not go together with the sandbox's {mode!r}"
    if verifier in _LISTS:
        yield "verifier.network_mode", "the tests' network is never filtered by a list"
    yield from _changes(task, networks)


def _changes(task: Task, networks: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the phases whose network differs, where it stays as it started; who enforces lists can change it."""
    mode = task.config.sandbox.network_mode
    tables = (("agent", task.config.agent.network_mode), ("verifier", task.config.verifier.network_mode))
    for place, own in tables if not networks >= _LISTS else ():
        if own is not None and own not in _LISTS and own != mode:
            why = f"{own!r} differs from the sandbox's {mode!r}, and a network stays as it started"
            yield f"{place}.network_mode", f"{why} on this host"


def _preparation(task: Task) -> Iterator[tuple[str, str]]:
    sandbox = task.config.sandbox
    for index, command in enumerate(sandbox.setup_commands):
        path = f"sandbox.setup_commands[{index}]"
        yield from _service(task, f"{path}.service", command.service)
        for key in ("capture_dir_b64_env", "capture_dir_b64_env_file_var"):
            name = getattr(command, key)
            if name is not None and command.capture_dir is None:
                yield f"{path}.{key}", "capture_dir does not say what it is given"
            elif name is not None and not _VARIABLE.fullmatch(name):
                yield f"{path}.{key}", f"{name!r} is no name of a variable"


def _verifier(task: Task) -> Iterator[tuple[str, str]]:
    verifier = task.config.verifier
    if verifier.type != "test-script":
        yield "verifier.type", f"{verifier.type!r} is not run by this version; only test-script is"
    yield from separate_reasons(task)
    yield from _service(task, "verifier.service", verifier.service)
    if task.compose is not None and task.compose.data["services"].get(verifier.service, {}).get("read_only"):
        yield "verifier.service", f"{verifier.service!r} is read_only, so no tests can be placed in it"
    if verifier.collect:
        yield "verifier.collect", "these commands are not run by this version, and the verdict may need them"
    if verifier.memory.expected_skills:
        yield "verifier.memory", "skill memory is not scored by this version"


def _document(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    benchflow = document.get("benchflow", {})
    for key, reason in _BENCHFLOW_REASONS.items():
        if benchflow.get(key):
            yield f"benchflow.{key}", reason
    yield from _other_verifier(benchflow.get("verifier"))
    strategy = document.get("verifier_strategy")
    if strategy is not None and (reason := refusal(strategy)):
        yield "verifier/verifier.md", reason


def _other_verifier(declared: Any) -> Iterator[tuple[str, str]]:
    """Yield a verifier the document names in place of the test script."""
    if not declared:
        return
    path = declared.get("path") if isinstance(declared, dict) else None
    is_default = isinstance(path, str) and path.removeprefix("./").rstrip("/") in _DEFAULT_PATHS
    if not is_default or len(declared) > 1:
        yield "benchflow.verifier", "only test.sh of the verifier folder is run by this version"
