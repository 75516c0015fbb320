"""Which login an agent uses, where it uses one; resolved on the worker, before any sandbox exists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchflow_client.catalog.credentials import Credential, agent_credential
from benchflow_client.catalog.providers import Route, find_route
from benchflow_client.errors import AgentError, UsageError
from benchflow_client.schema.agent_definition import AgentDefinition, Login
from benchflow_workers.agents.base import Agent
from benchflow_workers.agents.login import LoginAgent, LoginFiles

__all__ = ["LOGIN_BYTES", "LoginPlaces", "login_for", "on_login", "route_of"]

LOGIN_BYTES: Final = 1 << 20
"""A file of a login is some tokens; a larger one is something else."""


@dataclass(frozen=True, slots=True)
class LoginPlaces:
    """Where logins are on a worker; a plan, which anybody may have written, has no say in it.

    Attributes:
        environ: Variables of the worker: they allow logins, hold them, and name the home folder.
        known: What a login is made of, by the agent's name.
    """

    environ: Mapping[str, str] = field(repr=False)
    known: Mapping[str, Login]


def login_for(
    definition: AgentDefinition | None, model: str | None, of_job: Mapping[str, str], places: LoginPlaces
) -> LoginFiles | None:
    """Return the login an agent uses; None = it has a key, or may use no login, or there is none.

    Args:
        definition: The agent; None = it is no ready-made one.
        model: What it is to work with.
        of_job: Resolved variables of the agent.
        places: Where logins are.

    Raises:
        AgentError: `agent.env_missing`: the login cannot be read.
    """
    if definition is None or definition.login is None or model is None:
        return None
    own = definition.model_copy(update={"login": places.known.get(definition.name)})
    if own.login is None:
        return None
    environ = places.environ
    route = route_of(model, {**environ, **of_job})
    home = Path(environ.get("HOME") or "/nonexistent")
    found = agent_credential(own, None if route is None else route.provider, environ, home, of_job=of_job)
    if found.kind != "login" or (route is not None and route.provider.name == "custom"):
        return None
    return _read(own.login, found, environ, home)


def on_login(agent: Agent, login: LoginFiles, model: str) -> LoginAgent:
    """Return an agent that works on a login.

    Args:
        agent: Who works.
        login: The login.
        model: What it is to work with, with or without its provider.
    """
    route = route_of(model, {})
    if route is None:
        return LoginAgent(agent, login, model, "")
    return LoginAgent(agent, login, route.model, route.provider.name)


def route_of(model: str, variables: Mapping[str, str]) -> Route | None:
    """Return a model at its provider; None = no provider is known for it."""
    try:
        return find_route(model, variables)
    except UsageError:
        return None


def _read(login: Login, found: Credential, variables: Mapping[str, str], home: Path) -> LoginFiles:
    if found.name in login.variables:
        path, value = login.variables[found.name], variables[found.name]
        if path:
            return LoginFiles(found.name, {path: value.encode()})
        return LoginFiles(found.name, {}, {found.name: value})
    files: dict[str, bytes] = {}
    for name in login.files:
        file = home / name
        if not file.is_file():
            continue
        try:
            if file.stat().st_size > LOGIN_BYTES:
                raise OSError(f"it is larger than {LOGIN_BYTES} bytes")
            files[name] = file.read_bytes()
        except OSError as error:
            raise AgentError(
                "agent.env_missing",
                f"The login ~/{name} of the worker's user cannot be read: {error.strerror or error}.",
                hint="Log in again there, or give the worker a key of the provider.",
            ) from error
    return LoginFiles(found.name, files)
