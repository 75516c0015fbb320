"""From what a job says of its agents to agents of a plan: known, complete, and safe to store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow_client.catalog.agents import AgentEntry, find_agent
from benchflow_client.errors import JobSpecError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.ids import slug
from benchflow_client.schema.plan import PlannedAgent
from benchflow_client.tasks.bundle import digest_of

__all__ = ["plan_agents"]

_SECRET_NAME = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|COOKIE|AUTH|AUTHORIZATION|BEARER)$", re.IGNORECASE
)
_SHORTEST_SECRET = 6
"""Shorter values are settings, such as `AUTH=none`; no worker masks them either."""


def plan_agents(
    specs: Sequence[AgentSpec], own: Mapping[str, AgentEntry], *, staging: Path
) -> tuple[tuple[PlannedAgent, ...], dict[str, Path]]:
    """Return the agents, and the staged folder of each script by its digest.

    Args:
        specs: What the job says.
        own: Agents beside those of this version.
        staging: Folder for copies of scripts.

    Raises:
        UnknownAgentError: No agent of that name.
        JobSpecError: An agent's script cannot be used, or it is asked for what it has not.
    """
    agents: list[PlannedAgent] = []
    folders: dict[str, Path] = {}
    labels: set[str] = set()
    for spec in specs:
        _check_no_secret(spec)
        if spec.is_script:
            folder = _staged(Path(spec.name).expanduser(), staging)
            bundle = digest_of(folder)
            folders[bundle] = folder
            agent = PlannedAgent(
                label="", slug="", spec=_of_script(spec), bundle=bundle, script=Path(spec.name).name
            )
        else:
            agent = _known(spec, find_agent(spec.name, own))
        label = _unique(agent.spec.label, labels)
        agents.append(agent.model_copy(update={"label": label, "slug": slug(label)}))
    return tuple(agents), folders


def _known(spec: AgentSpec, entry: AgentEntry) -> PlannedAgent:
    """Return a named agent of a plan, under the name it is registered by."""
    definition = entry.definition
    if definition is None:
        if spec.version is not None:
            raise JobSpecError(f"Agent {spec.name!r} has no versions.", hint=f"Leave out @{spec.version}.")
        if entry.kind != "factory" and spec.effort is not None and not entry.is_control:
            raise _no_effort(spec)
        return PlannedAgent(label="", slug="", spec=spec.model_copy(update={"name": entry.name}))
    spec = spec.model_copy(update={"name": entry.name, "model": spec.model or definition.default_model})
    if definition.needs_model and spec.model is None:
        raise JobSpecError(
            f"Agent {spec.name!r} needs a model.", hint="Give one: --model provider/name (docs/models.md)."
        )
    if spec.effort is not None and not definition.takes_effort:
        raise _no_effort(spec)
    _check_required(spec, definition)
    if spec.version is not None:
        definition = definition.model_copy(update={"version": spec.version})
    return PlannedAgent(label="", slug="", spec=spec, definition=definition)


def _of_script(spec: AgentSpec) -> AgentSpec:
    if spec.version is not None:
        raise JobSpecError(f"Agent {spec.name!r} is a file and has no version.", hint="Leave it out.")
    return spec


def _no_effort(spec: AgentSpec) -> JobSpecError:
    return JobSpecError(
        f"Agent {spec.name!r} cannot be asked for an effort.",
        hint="Leave out --effort, or choose an agent that `bench agents show NAME` says takes one.",
    )


def _check_required(spec: AgentSpec, definition: AgentDefinition) -> None:
    given = {item.partition("=")[0] for item in spec.env}
    missing = [name for name in definition.requires_env if name not in given]
    if missing and spec.model is None:
        raise JobSpecError(
            f"Agent {spec.name!r} needs {', '.join(missing)}.",
            hint=f"Set it where the workers run, and name it: --agent-env {missing[0]}",
        )


def _check_no_secret(spec: AgentSpec) -> None:
    """Refuse a value that is a secret by its name: it would be stored with the job, in clear and for good."""
    for name, _, value in (item.partition("=") for item in spec.env):
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            raise JobSpecError(
                f"agent_env: {name} has the name of a secret, and its value would be stored with the job.",
                hint=f"Set {name} where the workers run, and give only its name: --agent-env {name}",
            )


def _staged(script: Path, staging: Path) -> Path:
    """Return a folder that holds nothing but the script."""
    if not script.is_file():
        raise JobSpecError(
            f"Agent {str(script)!r} is not a file.",
            hint="Name an executable or a .py file, or an agent of `bench agents`.",
        )
    try:
        data = script.read_bytes()
        folder = staging / slug(str(script.resolve()))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        copy = folder / script.name
        copy.write_bytes(data)
        copy.chmod(0o755)
    except OSError as error:
        raise JobSpecError(
            f"Agent {str(script)!r} cannot be read: {error.strerror}.", hint="Check its permissions."
        ) from error
    return folder


def _unique(label: str, taken: set[str]) -> str:
    """Return the label, numbered when another agent of the job has it."""
    name, number = label, 2
    while name in taken:
        name, number = f"{label}#{number}", number + 1
    taken.add(name)
    return name
