"""From the name of a model to where an agent's calls go; resolved on the worker, before any sandbox exists."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from benchflow_client.catalog.provider_table import CUSTOM, CUSTOM_URL, Provider
from benchflow_client.catalog.providers import Dialect, Route, buckets_of, find_route, known_variables
from benchflow_client.errors import AgentError, UsageError
from benchflow_client.schema.job import JobSpec
from benchflow_workers.gateway.target import Account, Allowance, Capture, Target
from benchflow_workers.trial.translations import translation_to
from benchflow_workers.trial.variables import NOT_SET

__all__ = ["allowance_of", "capture_of", "target_of"]


def target_of(model: str, agent_env: Mapping[str, str], environ: Mapping[str, str]) -> Target:
    """Return the model at its provider, with the key.

    Args:
        model: `provider/name`, or a name that tells its provider.
        agent_env: Resolved variables of the agent; they count before the worker's.
        environ: This worker's variables.

    Guarantees: a key that the worker has for one address goes to no other that the agent names.

    Raises:
        AgentError: `agent.not_runnable`: no provider is known for it. `agent.env_missing`: its key
            or address is not set on this worker.
    """
    own, workers = known_variables(agent_env), known_variables(environ)
    variables = {**known_variables({**environ, **dict.fromkeys(agent_env, "")}), **own}
    try:
        route = find_route(model, variables)
    except UsageError as error:
        raise AgentError("agent.not_runnable", error.message, hint=error.hint) from error
    provider = route.provider
    try:
        urls = {dialect: provider.url(dialect, variables) for dialect in provider.urls}
        translation = translation_to(provider, variables)
    except KeyError as error:
        raise _missing(model, str(error.args[0])) from error
    is_bound = provider.name != CUSTOM.name or CUSTOM_URL in workers
    held_by = _key_name(model, provider, variables, own=own if is_bound else {})
    key = None if held_by is None else variables[held_by]
    account = _account(route, model, urls, variable=_variable_of(key, held_by, workers))
    bearer = None if held_by is None else provider.accounts.get(held_by)
    place = (provider.name, route.model, urls, key, account)
    return Target(*place, bearer=bearer, translation=translation)


def _key_name(
    model: str, provider: Provider, variables: Mapping[str, str], *, own: Mapping[str, str]
) -> str | None:
    """Return the variable that holds the provider's key; None = it needs none.

    Args:
        model: For messages.
        provider: The provider.
        variables: All that count.
        own: Those of the agent, where keys of the worker are for the worker's address.
    """
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
    host = urlsplit(next(iter(urls.values()), "")).netloc.rpartition("@")[2]
    buckets = buckets_of(model) if variable is None else (*buckets_of(model), f"key:{variable}")
    words = (route.provider.name, variable, host)
    return Account(" ".join(word for word in words if word), buckets, route.provider.limits_cached)


def _variable_of(key: str | None, name: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the variable of this worker that holds a key; None = there is none, or the job brought it."""
    if key is None or name is None or environ.get(name) == key:
        return name
    return min((other for other, value in environ.items() if value == key), default=None)


def allowance_of(spec: JobSpec) -> Allowance:
    """Return what one turn may use: what is reserved for a trial, where the job says it."""
    return Allowance(cost_usd=spec.trial_cost_usd, tokens=spec.trial_tokens)


def capture_of(spec: JobSpec, target: Target) -> Capture:
    """Return what a model is asked for beside what agents ask: for token ids only where the server is one's own."""
    if target.translation is not None:
        return Capture.NOTHING
    if spec.capture_tokens != "off" and target.provider == CUSTOM.name:
        return Capture.TOKENS
    return Capture.LOGPROBS if spec.capture_tokens == "on" else Capture.NOTHING


def _missing(model: str, name: str) -> AgentError:
    return AgentError(
        "agent.env_missing",
        f"Model {model!r} needs the variable {name}, {NOT_SET}.",
        hint=f"Set {name} in one of the two and start the worker again; it does not enter the sandbox.",
    )
