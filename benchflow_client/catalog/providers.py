"""The model providers that can be named, as data: where they are, what they speak, which variable holds the key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from benchflow_client.errors import UsageError
from benchflow_client.schema.dialect import DIALECTS, Dialect

__all__ = ["DIALECTS", "PROVIDERS", "Dialect", "Provider", "Route", "buckets_of", "find_route"]

CUSTOM_URL: Final = "BENCHFLOW_PROVIDER_BASE_URL"
CUSTOM_KEY: Final = "BENCHFLOW_PROVIDER_API_KEY"
CUSTOM_PROTOCOL: Final = "BENCHFLOW_PROVIDER_PROTOCOL"
"""Variables that send every model to one address of the user's own."""

_VARIABLE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider.

    Attributes:
        name: Prefix of its models: `name/model`.
        urls: Dialect -> base URL; `{NAME}` stands for a variable of the worker.
        key_env: Variable of the worker that holds the key; the first that is set counts, empty = none needed.
        families: Beginnings of model names that mean this provider without a prefix.
        limits_cached: Whether tokens read from its cache count in its own limits.
    """

    name: str
    urls: Mapping[Dialect, str]
    key_env: tuple[str, ...]
    families: tuple[str, ...] = ()
    limits_cached: bool = True

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables its addresses need."""
        return tuple(dict.fromkeys(name for url in self.urls.values() for name in _VARIABLE.findall(url)))


@dataclass(frozen=True, slots=True)
class Route:
    """A model at its provider.

    Attributes:
        provider: The provider.
        model: Name the provider knows it by.
    """

    provider: Provider
    model: str

    def url(self, dialect: Dialect, variables: Mapping[str, str]) -> str:
        """Return the base URL of a dialect with variables filled in; a missing one raises KeyError."""
        return _VARIABLE.sub(lambda match: variables[match.group(1)], self.provider.urls[dialect]).rstrip("/")


def _openai_like(name: str, url: str, *families: str, key: str = "") -> Provider:
    key_env = key or f"{name.upper().replace('-', '_')}_API_KEY"
    return Provider(name, {"openai-completions": url}, (key_env,), families)


_OPENAI: Final = "https://api.openai.com/v1"
_AZURE: Final = "https://{AZURE_RESOURCE}"

PROVIDERS: Final[dict[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider(
            "openai",
            {"openai-completions": _OPENAI, "openai-responses": _OPENAI},
            ("OPENAI_API_KEY",),
            ("gpt", "o1", "o3", "o4", "codex"),
        ),
        Provider(
            "anthropic",
            {"anthropic-messages": "https://api.anthropic.com"},
            ("ANTHROPIC_API_KEY",),
            ("claude", "haiku", "sonnet", "opus"),
            # Its "Rate limits" page: cache reads do not count towards input tokens per minute for current models.
            limits_cached=False,
        ),
        Provider(
            "google",
            {"gemini-generate": "https://generativelanguage.googleapis.com"},
            ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
            ("gemini",),
        ),
        Provider(
            "us-openai",
            {
                "openai-completions": "https://us.api.openai.com/v1",
                "openai-responses": "https://us.api.openai.com/v1",
            },
            ("OPENAI_API_KEY",),
        ),
        Provider(
            "azure-foundry-openai",
            {
                "openai-completions": f"{_AZURE}.openai.azure.com/openai/v1",
                "openai-responses": f"{_AZURE}.openai.azure.com/openai/v1",
            },
            ("AZURE_API_KEY",),
        ),
        Provider(
            "azure-foundry-anthropic",
            {"anthropic-messages": f"{_AZURE}.services.ai.azure.com/anthropic"},
            ("AZURE_API_KEY",),
        ),
        Provider(
            "zai",
            {
                "openai-completions": "https://api.z.ai/api/paas/v4",
                "anthropic-messages": "https://api.z.ai/api/anthropic",
            },
            ("ZAI_API_KEY",),
        ),
        _openai_like("zai-coding", "https://api.z.ai/api/coding/paas/v4", key="ZAI_API_KEY"),
        _openai_like("github-models", "https://models.github.ai/inference", key="GITHUB_TOKEN"),
        _openai_like("openrouter", "https://openrouter.ai/api/v1"),
        _openai_like("litellm", "{LITELLM_BASE_URL}"),
        _openai_like("kimi", "{KIMI_BASE_URL}", "kimi", "moonshot"),
        _openai_like("minimax", "{MINIMAX_BASE_URL}", "minimax"),
        _openai_like("qwen-dashscope", "{QWEN_BASE_URL}", "qwen", key="QWEN_API_KEY"),
        _openai_like("glm", "{GLM_BASE_URL}", "glm"),
        _openai_like("xiaomi", "{XIAOMI_BASE_URL}", "xiaomi", "mimo"),
        _openai_like("hunyuan", "{HUNYUAN_BASE_URL}", "hunyuan"),
        _openai_like("deepseek", "https://api.deepseek.com/v1", "deepseek"),
    )
}
"""Providers by name."""

CUSTOM: Final = Provider(
    "custom",
    {"openai-completions": f"{{{CUSTOM_URL}}}", "openai-responses": f"{{{CUSTOM_URL}}}"},
    (CUSTOM_KEY,),
    (),
)
"""An address of the user's own, which needs no key; `vllm/` is another word for it."""


def find_route(model: str, variables: Mapping[str, str]) -> Route:
    """Return the provider of a model and the name it has there.

    Args:
        model: `provider/name`, or a name whose beginning tells the provider.
        variables: Of the agent and the worker: `BENCHFLOW_PROVIDER_BASE_URL` sends every model there.

    Raises:
        UsageError: No provider is known for it.
    """
    prefix, separator, rest = model.partition("/")
    if variables.get(CUSTOM_URL):
        known = prefix in PROVIDERS or prefix in {"vllm", "custom"}
        return Route(_custom(variables), rest if separator and known else model)
    if separator and prefix in PROVIDERS:
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
    return replace(CUSTOM, urls={chosen[0]: f"{{{CUSTOM_URL}}}"})


def _is_of(model: str, family: str) -> bool:
    """Return whether a name is a family's, or begins with it and goes on with no letter."""
    rest = model.removeprefix(family)
    return model.startswith(family) and (not rest or not rest[0].isalpha())
