"""Resolve variables on the worker: only names travel, values never leave this host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchflow_client.errors import AgentError
from benchflow_client.schema.task import SetupCommand, Task, TaskConfig
from benchflow_workers.agents.tools import MCP_CONFIG, MCP_CONFIG_PATH, server_entry

_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|COOKIE|AUTH|BEARER|SESSION", re.IGNORECASE
)

NOT_SET = "which is set neither in this worker's environment nor in .env of its working directory"
"""What is said of a variable that has no value here."""

MIN_SECRET_CHARS = 6
"""A shorter value is not looked for in outputs: it would match ordinary text."""


@dataclass(frozen=True, slots=True)
class Variables:
    """Every variable of a trial, resolved on this worker.

    Attributes:
        sandbox: For every command in the sandbox.
        agent: For the agent.
        oracle: For the reference solution.
        verifier: For the tests.
        setup: For each setup command, in order; `${NAME}` where an earlier one captures NAME.
        services: For the services of the task's manifest; what the worker lacks is left out.
        mcp_servers: The tool servers by name, as the agent is told of them.
        secrets: Values that must not be written anywhere.
    """

    sandbox: Mapping[str, str]
    agent: Mapping[str, str]
    oracle: Mapping[str, str]
    verifier: Mapping[str, str]
    setup: tuple[Mapping[str, str], ...]
    services: Mapping[str, str]
    mcp_servers: Mapping[str, Mapping[str, Any]]
    secrets: frozenset[str]


def resolve_variables(task: Task, agent_env: tuple[str, ...], environ: Mapping[str, str]) -> Variables:
    """Return all variables of a trial.

    Args:
        task: Declares tables of variables.
        agent_env: `NAME` and `NAME=VALUE` items of the agent.
        environ: This worker's variables, which names and templates refer to.

    Raises:
        AgentError: `agent.env_missing`.
    """
    config = task.config
    sandbox = resolve_templates(config.sandbox.env, environ, place="environment.env")
    oracle = resolve_templates(config.oracle.env, environ, place="solution.env")
    verifier = resolve_templates(config.verifier.env, environ, place="verifier.env")
    agent = resolve_agent_env(agent_env, environ)
    setup = _resolve_setup(config.sandbox.setup_commands, environ)
    forwarded = () if task.manifest is None else task.manifest.forward_env.keys
    services = {name: environ[name] for name in forwarded if name in environ}
    servers, of_servers = _resolve_servers(task, environ)
    if servers:
        agent = {MCP_CONFIG: MCP_CONFIG_PATH, **agent}
    tables = (sandbox, oracle, verifier, agent, *setup, *of_servers)
    secrets = secret_values(
        *tables, by_reference=(*agent_env, *services, *_referred(config)), environ=environ
    )
    return Variables(sandbox, agent, oracle, verifier, setup, services, servers, secrets)


def _referred(config: TaskConfig) -> Iterator[str]:
    """Yield the secrets of this worker that a task refers to, whatever it calls them itself."""
    sandbox = config.sandbox
    yield from secret_references(sandbox.env, config.oracle.env, config.verifier.env)
    yield from secret_references(*(command.env for command in sandbox.setup_commands))
    yield from secret_references(
        *(table for server in sandbox.mcp_servers for table in (server.env, server.headers))
    )


def _resolve_setup(
    commands: Sequence[SetupCommand], environ: Mapping[str, str]
) -> tuple[Mapping[str, str], ...]:
    """Return the variables of each setup command; what one captures stays a template for those after it."""
    tables, known = [], dict(environ)
    for command in commands:
        tables.append(resolve_templates(command.env, known, place="environment.setup_commands.env"))
        if command.capture_dir_b64_env is not None:
            known[command.capture_dir_b64_env] = template(command.capture_dir_b64_env)
    return tuple(tables)


def template(name: str) -> str:
    """Return the text that stands for the value of a variable."""
    return f"${{{name}}}"


def _resolve_servers(
    task: Task, environ: Mapping[str, str]
) -> tuple[dict[str, Mapping[str, Any]], list[Mapping[str, str]]]:
    """Return the tool servers by name, and every table of values they were given."""
    servers: dict[str, Mapping[str, Any]] = {}
    tables: list[Mapping[str, str]] = []
    for server in task.config.sandbox.mcp_servers:
        place = f"environment.mcp_servers.{server.name}"
        env = resolve_templates(server.env, environ, place=f"{place}.env")
        headers = resolve_templates(server.headers, environ, place=f"{place}.headers")
        servers[server.name] = server_entry(server, env=env, headers=headers)
        tables += [env, headers]
    return servers, tables


def resolve_templates(values: Mapping[str, str], environ: Mapping[str, str], *, place: str) -> dict[str, str]:
    """Return a table of variables with whole-value templates filled in.

    Args:
        values: Variables; `${VAR}` and `${VAR:-default}` are templates, anything else is literal.
        environ: Where templates are looked up.
        place: Key of the task file, for the error.

    Raises:
        AgentError: `agent.env_missing`: a template has neither value nor default.
    """
    return {name: _resolve(name, value, environ, place) for name, value in values.items()}


def resolve_agent_env(items: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's variables: `NAME` from this worker, `NAME=VALUE` as given.

    Raises:
        AgentError: `agent.env_missing`: a name is not set on this worker.
    """
    resolved = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator and name not in environ:
            raise AgentError(
                "agent.env_missing",
                f"The agent needs the variable {name}, {NOT_SET}.",
                hint=f"Set {name} in one of the two and start the worker again.",
            )
        resolved[name] = value if separator else environ[name]
    return resolved


def secret_values(
    *tables: Mapping[str, str], by_reference: tuple[str, ...], environ: Mapping[str, str]
) -> frozenset[str]:
    """Return the values that must not be written anywhere.

    Args:
        tables: Resolved variables; those with the name of a secret count.
        by_reference: Agent variables; each plain `NAME` counts whatever it is called.
        environ: This worker's variables.
    """
    named = {value for table in tables for name, value in table.items() if _SECRET_NAME.search(name)}
    referred = {environ[item] for item in by_reference if "=" not in item and item in environ}
    return frozenset(value for value in named | referred if len(value) >= MIN_SECRET_CHARS)


def secret_references(*tables: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables of this worker with the name of a secret that templates of these tables refer to."""
    for table in tables:
        for match in filter(None, map(_TEMPLATE.fullmatch, table.values())):
            if _SECRET_NAME.search(match[1]):
                yield match[1]


def _resolve(name: str, value: str, environ: Mapping[str, str], place: str) -> str:
    match = _TEMPLATE.fullmatch(value)
    if match is None:
        return value
    variable, default = match.groups()
    found = environ.get(variable, default)
    if found is None:
        raise AgentError(
            "agent.env_missing",
            f"{place}.{name} needs the variable {variable}, {NOT_SET}.",
            hint=f"Set {variable} in one of the two and start the worker again, or give a default: "
            f"${{{variable}:-value}}.",
        )
    return found
