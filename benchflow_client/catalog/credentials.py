"""What an agent would pay with: a provider's key, a token of an account, or a login of the worker's user.

Names only: a value is read by whoever uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchflow_client.catalog.providers import PROVIDERS, Provider
from benchflow_client.schema.agent_definition import AgentDefinition, Login
from benchflow_client.schema.dialect import Dialect

__all__ = ["LOGIN_SWITCH", "Credential", "agent_credential", "key_name", "login_of"]

LOGIN_SWITCH: Final = "BENCHFLOW_SUBSCRIPTION_AUTH"
"""Variable of a worker that lets agents use logins, whose files enter their sandboxes: `on`."""

_USUAL: Final[dict[Dialect, str]] = {
    "anthropic-messages": "anthropic",
    "openai-responses": "openai",
    "openai-completions": "openai",
    "gemini-generate": "google",
}
"""Whose models agents of a dialect mostly work with."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What is used.

    Attributes:
        kind: `key` stays with the worker; `login` enters the sandbox; `off` is a login that may not be used;
            `none` = there is nothing.
        name: Of a variable or a file; for `none` what would be used.
    """

    kind: Literal["key", "login", "off", "none"]
    name: str


def key_name(provider: Provider, variables: Mapping[str, str]) -> str | None:
    """Return the variable that holds the provider's key, the first that is set; None = none is."""
    return next((name for name in provider.key_env if variables.get(name)), None)


def login_of(login: Login, variables: Mapping[str, str], home: Path) -> str | None:
    """Return where a login is: a variable, or a file as `~/...`; None = there is none."""
    found = next((name for name in login.variables if variables.get(name)), None)
    if found is not None:
        return found
    return f"~/{login.detect}" if (home / login.detect).is_file() else None


def agent_credential(
    definition: AgentDefinition,
    provider: Provider | None,
    variables: Mapping[str, str],
    home: Path,
    *,
    of_job: Mapping[str, str] | None = None,
) -> Credential:
    """Return what an agent would use.

    Args:
        definition: The agent.
        provider: Whose model; None = those agents of its dialect mostly work with.
        variables: Of the worker.
        home: Of the worker's user.
        of_job: Variables of the job's, which may bring or take away a key, but not allow a login.
    """
    usual = _usual(definition)
    provider = provider or usual
    key = key_name(provider, {**variables, **(of_job or {})})
    if key is not None:
        return Credential("key", key)
    has_login = definition.login is not None and provider is usual  # it is good at no other provider
    login = login_of(definition.login, variables, home) if definition.login and has_login else None
    if login is not None:
        return Credential("login" if variables.get(LOGIN_SWITCH) == "on" else "off", login)
    return Credential("none", " or ".join(_possible(definition if has_login else None, provider)))


def _usual(definition: AgentDefinition) -> Provider:
    dialect = definition.dialects[0] if definition.dialects else "openai-completions"
    return PROVIDERS[_USUAL[dialect]]


def _possible(definition: AgentDefinition | None, provider: Provider) -> Iterator[str]:
    yield from provider.key_env
    if definition is not None and definition.login is not None:
        yield from definition.login.variables
        yield f"~/{definition.login.detect}"
