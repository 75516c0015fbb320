"""What a ready-made agent is started with: its definition, filled in for one turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Final

from benchflow_client.errors import AgentError
from benchflow_client.schema.agent_definition import AgentDefinition, Launch
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.program import HOME_DIR
from benchflow_workers.agents.tools import MCP_CONFIG
from benchflow_workers.sandbox.base import Upload

__all__ = ["EFFORT", "Started", "definition_of", "started"]

EFFORT: Final = "BENCHFLOW_REASONING_EFFORT"
"""Variable of the agent that holds the effort it is asked for."""

_QUOTED: Final = (".json", ".toml")
_READABLE: Final = 0o644


@dataclass(frozen=True, slots=True)
class Started:
    """What a program is started with.

    Attributes:
        arguments: After its own command line.
        later: The same for a run that goes on with the session; None = it cannot go on.
        env: All of its variables.
        files: Path below the home folder -> content.
    """

    arguments: tuple[str, ...]
    later: tuple[str, ...] | None
    env: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    def uploads(self) -> list[Upload]:
        """Return the files as they are placed, for `program.start_command` to copy."""
        return [
            Upload(f"{HOME_DIR}/{path}", content=text.encode(), mode=_READABLE)
            for path, text in self.files.items()
        ]


def definition_of(context: AgentContext) -> AgentDefinition:
    """Return the definition of a ready-made agent.

    Raises:
        AgentError: `agent.not_runnable`: the plan has none.
    """
    if context.definition is None:
        raise AgentError(
            "agent.not_runnable",
            f"The plan does not say how agent {context.spec.name!r} is started.",
            hint="Submit the job again with this version of `bench`.",
        )
    return context.definition


def started(context: AgentContext) -> Started:
    """Return what an agent's definition comes to.

    Raises:
        AgentError: `agent.not_runnable`: it has no definition, or that refers to a variable that is not set.
    """
    definition = definition_of(context)
    launches = list(_launches(definition, context))
    more = tuple(argument for launch in launches[1:] for argument in launch.arguments)
    known = _known(context)
    own = {name: value for launch in launches for name, value in launch.env.items()}
    # A mapping to what the job does not have is left out; everything else must be there.
    env = {name: Template(text).safe_substitute(known) for name, text in own.items()}
    env = {name: text for name, text in env.items() if not (text == own[name] and text.startswith("${"))}
    env |= known
    return Started(
        arguments=_filled((*launches[0].arguments, *more), env, context),
        later=None if definition.later is None else _filled((*definition.later, *more), env, context),
        env=env,
        files={
            path: _substitute(text, _quoted(env) if path.endswith(_QUOTED) else env, context)
            for launch in launches
            for path, text in launch.files.items()
        },
    )


def _launches(definition: AgentDefinition, context: AgentContext) -> Iterator[Launch]:
    yield definition.launch
    if MCP_CONFIG in context.env:
        yield definition.with_tools
    if context.spec.effort is not None and definition.with_effort is not None:
        yield definition.with_effort
    if not context.is_web_open:
        yield definition.without_web


def _known(context: AgentContext) -> dict[str, str]:
    effort = context.spec.effort
    return {**context.env, **({} if effort is None else {EFFORT: effort})}


def _filled(texts: tuple[str, ...], env: Mapping[str, str], context: AgentContext) -> tuple[str, ...]:
    return tuple(_substitute(text, env, context) for text in texts)


def _substitute(text: str, env: Mapping[str, str], context: AgentContext) -> str:
    try:
        return Template(text).substitute(env)
    except (KeyError, ValueError) as error:
        raise AgentError(
            "agent.not_runnable",
            f"Agent {context.spec.name!r} cannot be started: its definition refers to {error}, which is not set.",
            hint="Give it a model, or set the variable with --agent-env.",
        ) from error


def _quoted(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables as they stand inside of a quoted string of JSON or TOML."""
    return {name: json.dumps(value)[1:-1] for name, value in env.items()}
