"""From the name of a model to where an agent's calls go; resolved on the worker, before any sandbox exists."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from benchflow_client.catalog.provider_table import CUSTOM, Provider
from benchflow_client.catalog.providers import Dialect, Route, buckets_of, find_route, known_variables
from benchflow_client.errors import AgentError, UsageError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.job import JobSpec
from benchflow_workers.gateway.target import Account, Allowance, Capture, Target
from benchflow_workers.trial.variables import NOT_SET

__all__ = ["allowance_of", "capture_of", "check_spoken", "target_of"]


def target_of(model: str, agent_env: Mapping[str, str], environ: Mapping[str, str]) -> Target:
    """Return the model at its provider, with the key.

    Args:
        model: `provider/name`, or a name that tells its provider.
        agent_env: Resolved variables of the agent; they count before the worker's.
        environ: This worker's variables.

    Guarantees: a key of the worker goes only to an address that is not the agent's.

    Raises:
        AgentError: `agent.not_runnable`: no provider is known for it. `agent.env_missing`: its key
            or address is not set on this worker.
    """
    own = known_variables(agent_env)
    variables = {**known_variables({**environ, **dict.fromkeys(agent_env, "")}), **own}
    try:
        route = find_route(model, variables)
    except UsageError as error:
        raise AgentError("agent.not_runnable", error.message, hint=error.hint) from error
    provider = route.provider
    try:
        urls = {dialect: provider.url(dialect, variables) for dialect in provider.urls}
    except KeyError as error:
        raise _missing(model, str(error.args[0])) from error
    held_by = _key_name(model, provider, own, variables)
    key = None if held_by is None else variables[held_by]
    account = _account(route, model, urls, variable=_variable_of(key, held_by, known_variables(environ)))
    bearer = None if held_by is None else provider.accounts.get(held_by)
    return Target(provider.name, route.model, urls, key, account, bearer=bearer)


def _key_name(
    model: str, provider: Provider, own: Mapping[str, str], variables: Mapping[str, str]
) -> str | None:
    """Return the variable that holds the provider's key; None = it needs none."""
    address = next((name for name in provider.variables if name in own), None)
    given = variables if address is None else own
    held_by = next((name for name in provider.key_env if name in given), None)
    if held_by is None and address is not None and (kept := set(provider.key_env) & variables.keys()):
        name = min(kept)
        raise AgentError(
            "agent.env_missing",
            f"Model {model!r} is at an address of the agent's ({address}), where this worker's {name} does not go.",
            hint=f"Give the agent the key that is meant for it: --agent-env {name}, or --agent-env {name}= for none.",
        )
    if held_by is None and provider.name != CUSTOM.name:
        raise _missing(model, " or ".join(provider.key_env))
    return held_by


def _account(route: Route, model: str, urls: Mapping[Dialect, str], *, variable: str | None) -> Account:
    """Return for whom the provider counts: its key, by the name of its variable, never by its value."""
    host = urlsplit(next(iter(urls.values()))).netloc.rpartition("@")[2]
    buckets = buckets_of(model) if variable is None else (*buckets_of(model), f"key:{variable}")
    words = (route.provider.name, variable, host)
    return Account(" ".join(word for word in words if word), buckets, route.provider.limits_cached)


def _variable_of(key: str | None, name: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the variable of this worker that holds a key; None = there is none, or the job brought it."""
    if key is None or name is None or environ.get(name) == key:
        return name
    return min((other for other, value in environ.items() if value == key), default=None)


def check_spoken(spec: AgentSpec, definition: AgentDefinition | None, target: Target | None) -> None:
    """Refuse a ready-made agent without a model, or with one whose provider it cannot talk to.

    Raises:
        AgentError: `agent.not_runnable`.
    """
    if definition is None:
        return
    if target is None and definition.needs_model:
        raise AgentError(
            "agent.not_runnable",
            f"Agent {spec.name!r} needs a model.",
            hint="Give one: --model provider/name",
        )
    if target is None or not definition.dialects:
        return
    if not any(dialect in target.urls for dialect in definition.dialects):
        raise AgentError(
            "agent.not_runnable",
            f"Agent {spec.name!r} speaks {', '.join(definition.dialects)}; provider {target.provider!r} speaks "
            f"{', '.join(target.urls)}.",
            hint="Choose a model of another provider, or set BENCHFLOW_PROVIDER_PROTOCOL for a server of your own.",
        )


def allowance_of(spec: JobSpec) -> Allowance:
    """Return what one turn may use: what is reserved for a trial, where the job says it."""
    return Allowance(cost_usd=spec.trial_cost_usd, tokens=spec.trial_tokens)


def capture_of(spec: JobSpec, target: Target) -> Capture:
    """Return what a model is asked for beside what agents ask: for token ids only where the server is one's own."""
    if spec.capture_tokens != "off" and target.provider == CUSTOM.name:
        return Capture.TOKENS
    return Capture.LOGPROBS if spec.capture_tokens == "on" else Capture.NOTHING


def _missing(model: str, name: str) -> AgentError:
    return AgentError(
        "agent.env_missing",
        f"Model {model!r} needs the variable {name}, {NOT_SET}.",
        hint=f"Set {name} in one of the two and start the worker again; it does not enter the sandbox.",
    )
