"""Which calls a provider takes as they are, and which only when LiteLLM translates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchflow_client.catalog.provider_table import CUSTOM, Provider
from benchflow_client.catalog.providers import Dialect
from benchflow_client.errors import AgentError, MissingExtraError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.dialect import DIALECTS
from benchflow_workers.gateway.target import Target, Translation
from benchflow_workers.gateway.translator import check_installed

__all__ = ["as_spoken", "translation_to"]

_NO_KEY: Final = "none"
"""What is sent as a key where none is needed: clients refuse to send nothing."""


def as_spoken(spec: AgentSpec, definition: AgentDefinition | None, target: Target | None) -> Target | None:
    """Return the target in words that the agent has: as it is where one of them is the provider's own.

    Raises:
        AgentError: `agent.not_runnable`: a ready-made agent has no model; or its provider speaks nothing that
            it does, and what translates is not installed.
    """
    if target is None:
        if definition is not None and definition.needs_model:
            raise AgentError(
                "agent.not_runnable",
                f"Agent {spec.name!r} needs a model.",
                hint="Give one: --model provider/name",
            )
        return None
    spoken = DIALECTS if definition is None else definition.dialects or DIALECTS
    if any(dialect in target.urls for dialect in spoken):
        return target
    _check_translated(spec, spoken, target)
    urls: dict[Dialect, str] = dict.fromkeys(spoken, "")
    return replace(target, urls=urls, translation=target.translation or _by_dialect(target))


def _check_translated(spec: AgentSpec, spoken: tuple[Dialect, ...], target: Target) -> None:
    if target.bearer is not None:
        raise AgentError(
            "agent.not_runnable",
            f"Agent {spec.name!r} speaks {', '.join(spoken)}; provider {target.provider!r} speaks "
            f"{', '.join(target.urls)}, and what translates takes no account's token.",
            hint="Set the provider's API key instead.",
        )
    its = f"which speaks {', '.join(target.urls)}" if target.urls else "whose words are its own"
    try:
        check_installed(
            f"Agent {spec.name!r} speaks {', '.join(spoken)}; to reach provider {target.provider!r}, {its}, it"
        )
    except MissingExtraError as error:
        hint = f"{error.hint} on the worker's host, or choose a model of another provider."
        raise AgentError("agent.not_runnable", error.message, hint=hint) from error


def translation_to(provider: Provider, variables: Mapping[str, str]) -> Translation | None:
    """Return how LiteLLM reaches a provider that speaks no dialect; None = it speaks one.

    Raises:
        KeyError: A variable is not set; its name.
    """
    if provider.translated is None:
        return None
    table = provider.translated
    needed = {name: variables[variable] for name, variable in table.parameters.items()}
    other = {name: variables[variable] for name, variable in table.addresses.items() if variable in variables}
    return Translation(table.prefix, tuple({**needed, **other}.items()))


def _by_dialect(target: Target) -> Translation:
    """Return how LiteLLM reaches a provider that speaks dialects, but none of the agent's."""
    key = target.key or _NO_KEY
    if "openai-completions" in target.urls:
        # By responses only where they are known to be there: a server of one's own may have the older form alone.
        has_both = "openai-responses" in target.urls and target.provider != CUSTOM.name
        prefix, url = ("openai" if has_both else "custom_openai"), target.urls["openai-completions"]
    elif "openai-responses" in target.urls:
        prefix, url = "openai", target.urls["openai-responses"]
    elif "anthropic-messages" in target.urls:
        prefix, url = "anthropic", target.urls["anthropic-messages"]
    else:
        prefix, url = "gemini", f"{target.urls['gemini-generate']}/v1beta"
    return Translation(prefix, (("api_base", url), ("api_key", key)))
