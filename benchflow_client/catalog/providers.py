"""From the name of a model and what is set to its provider."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from benchflow_client.catalog.provider_table import (
    CUSTOM,
    CUSTOM_KEY,
    CUSTOM_PROTOCOL,
    CUSTOM_URL,
    PROVIDERS,
    Provider,
)
from benchflow_client.errors import UsageError
from benchflow_client.schema.dialect import DIALECTS, Dialect

__all__ = [
    "CUSTOM_KEY",
    "CUSTOM_PROTOCOL",
    "CUSTOM_URL",
    "DIALECTS",
    "PROVIDERS",
    "Dialect",
    "Provider",
    "Route",
    "buckets_of",
    "find_route",
    "known_variables",
]

_OWN: Final = frozenset({"vllm", "sglang", CUSTOM.name})
_AZURE_HOSTS: Final = (".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com")


@dataclass(frozen=True, slots=True)
class Route:
    """A model at its provider.

    Attributes:
        provider: The provider.
        model: Name the provider knows it by.
    """

    provider: Provider
    model: str


def known_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say something: not those that are blank, and one more where another tells it.

    `AZURE_API_ENDPOINT` tells `AZURE_RESOURCE`, and two other names of the region tell `AWS_REGION`.
    """
    known = {name: value.strip() for name, value in environ.items() if value.strip()}
    with suppress(ValueError):
        host = urlsplit(known.get("AZURE_API_ENDPOINT", "")).hostname or ""
        if host.endswith(_AZURE_HOSTS):
            known.setdefault("AZURE_RESOURCE", host.partition(".")[0])
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION_NAME"):
        if name in known:
            known.setdefault("AWS_REGION", known[name])
    return known


def find_route(model: str, variables: Mapping[str, str]) -> Route:
    """Return the provider of a model and the name it has there.

    Args:
        model: `provider/name`, or a name whose beginning tells the provider.
        variables: Of the agent and the worker: `BENCHFLOW_PROVIDER_BASE_URL` sends every model there.

    Raises:
        UsageError: No provider is known for it.
    """
    prefix, separator, rest = model.partition("/")
    has_prefix = bool(separator) and (prefix in PROVIDERS or prefix in _OWN)
    if variables.get(CUSTOM_URL) or (has_prefix and prefix in _OWN):
        return Route(_custom(variables), rest if has_prefix else model)
    if has_prefix:
        return Route(PROVIDERS[prefix], rest)
    if (by_family := _provider_of_family(model)) is not None:
        return Route(by_family, model)
    nearest = difflib.get_close_matches(prefix.lower(), PROVIDERS, n=1)
    raise UsageError(
        f"No provider is known for model {model!r}.",
        hint=f"{f'Did you mean {nearest[0]}/{rest}? ' if nearest else ''}Write provider/model ({', '.join(PROVIDERS)}), "
        f"or set {CUSTOM_URL} for a server of your own.",
    )


def buckets_of(model: str) -> tuple[str, ...]:
    """Return the names under which a model's trials and calls are limited.

    They are told by its name alone, so that client and workers agree: what stands before the slash, or the
    provider that a name without one means.
    """
    prefix, slash, _ = model.partition("/")
    by_family = None if slash else _provider_of_family(model)
    provider = prefix if slash else "" if by_family is None else by_family.name
    return (f"provider:{provider}", f"model:{model}") if provider else (f"model:{model}",)


def _provider_of_family(model: str) -> Provider | None:
    """Return the provider that the beginning of a name means."""
    families = [
        (family, provider)
        for provider in PROVIDERS.values()
        for family in provider.families
        if _is_of(model.lower(), family)
    ]
    return max(families, key=lambda found: len(found[0]))[1] if families else None


def _custom(variables: Mapping[str, str]) -> Provider:
    """Return the user's own address with the dialects it speaks."""
    protocol = variables.get(CUSTOM_PROTOCOL, "")
    if not protocol:
        return CUSTOM
    chosen = [dialect for dialect in DIALECTS if dialect == protocol]
    if not chosen:
        raise UsageError(f"{CUSTOM_PROTOCOL} is {protocol!r}.", hint=f"It is one of: {', '.join(DIALECTS)}.")
    return replace(CUSTOM, urls={chosen[0]: CUSTOM.urls["openai-completions"]})


def _is_of(model: str, family: str) -> bool:
    """Return whether a name is a family's, or begins with it and goes on with no letter."""
    rest = model.removeprefix(family)
    return model.startswith(family) and (not rest or not rest[0].isalpha())
