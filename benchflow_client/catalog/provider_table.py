"""The model providers, as data: where they are, what they speak, which variable holds the key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchflow_client.schema.dialect import Dialect

__all__ = ["CUSTOM", "CUSTOM_KEY", "CUSTOM_PROTOCOL", "CUSTOM_URL", "PROVIDERS", "Provider", "Translated"]

CUSTOM_URL: Final = "BENCHFLOW_PROVIDER_BASE_URL"
CUSTOM_KEY: Final = "BENCHFLOW_PROVIDER_API_KEY"
CUSTOM_PROTOCOL: Final = "BENCHFLOW_PROVIDER_PROTOCOL"
"""Variables that send every model to one address of the user's own."""

_VARIABLE = re.compile(r"\{([A-Z][A-Z0-9_]*)(?:\|([^{}]*))?\}")


@dataclass(frozen=True, slots=True)
class Translated:
    """How LiteLLM reaches a provider that speaks no dialect.

    Attributes:
        prefix: What its models begin with there.
        parameters: LiteLLM's parameter -> the variable that holds its value; all are needed.
        addresses: The same of such that name another address; none is needed.
    """

    prefix: str
    parameters: Mapping[str, str]
    addresses: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider.

    Attributes:
        name: Prefix of its models: `name/model`.
        urls: Dialect -> base URL; `{NAME}` stands for a variable, `{NAME|URL}` for one that need not be set.
        key_env: Variables that hold the key; the first that is set counts.
        families: Beginnings of model names that mean this provider without a prefix.
        limits_cached: Whether tokens read from its cache count in its own limits.
        accounts: Those of these variables that hold an account's token, which is sent as `Authorization: Bearer`
            -> headers that go with it.
        translated: How LiteLLM reaches it, where it speaks no dialect.
    """

    name: str
    urls: Mapping[Dialect, str]
    key_env: tuple[str, ...]
    families: tuple[str, ...] = ()
    limits_cached: bool = True
    accounts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    translated: Translated | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables in its addresses."""
        if self.translated is not None:
            return tuple(self.translated.addresses.values())
        return tuple(
            dict.fromkeys(found[1] for url in self.urls.values() for found in _VARIABLE.finditer(url))
        )

    def url(self, dialect: Dialect, variables: Mapping[str, str]) -> str:
        """Return the base URL of a dialect with variables filled in; a missing one raises KeyError."""

        def value(found: re.Match[str]) -> str:
            name, default = found.groups()
            return variables[name] if default is None else variables.get(name, default)

        return _VARIABLE.sub(value, self.urls[dialect]).rstrip("/")


def _at(url: str, *dialects: Dialect) -> dict[Dialect, str]:
    return dict.fromkeys(dialects, url)


def _openai_like(name: str, url: str, *families: str, key: str = "") -> Provider:
    """Return a provider that speaks chat completions."""
    key_env = key or f"{name.upper().replace('-', '_')}_API_KEY"
    return Provider(name, {"openai-completions": url}, (key_env,), families)


_SPEAKING: Final = (
    Provider(
        "openai",
        _at("{OPENAI_BASE_URL|https://api.openai.com/v1}", "openai-completions", "openai-responses"),
        ("OPENAI_API_KEY", "CODEX_API_KEY"),
        ("gpt", "o1", "o3", "o4", "codex"),
    ),
    Provider(
        "anthropic",
        _at("{ANTHROPIC_BASE_URL|https://api.anthropic.com}", "anthropic-messages"),
        ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"),
        ("claude", "haiku", "sonnet", "opus"),
        # Its "Rate limits" page: cache reads do not count towards input tokens per minute for current models.
        limits_cached=False,
        accounts={
            "ANTHROPIC_AUTH_TOKEN": {},
            # What Claude Code itself sends with the token of `claude setup-token`.
            "CLAUDE_CODE_OAUTH_TOKEN": {"anthropic-beta": "oauth-2025-04-20"},
        },
    ),
    Provider(
        "google",
        _at("{GOOGLE_GEMINI_BASE_URL|https://generativelanguage.googleapis.com}", "gemini-generate"),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("gemini",),
    ),
    Provider(
        "us-openai",
        _at("https://us.api.openai.com/v1", "openai-completions", "openai-responses"),
        ("OPENAI_API_KEY",),
    ),
    Provider(
        "azure-foundry-openai",
        _at("https://{AZURE_RESOURCE}.openai.azure.com/openai/v1", "openai-completions", "openai-responses"),
        ("AZURE_API_KEY",),
    ),
    Provider(
        "azure-foundry-anthropic",
        _at("https://{AZURE_RESOURCE}.services.ai.azure.com/anthropic", "anthropic-messages"),
        ("AZURE_API_KEY",),
    ),
    Provider(
        "zai",
        _at("https://api.z.ai/api/paas/v4", "openai-completions", "openai-responses")
        | _at("https://api.z.ai/api/anthropic", "anthropic-messages"),
        ("ZAI_API_KEY",),
    ),
    Provider(
        "zai-coding",
        _at("https://api.z.ai/api/coding/paas/v4", "openai-completions", "openai-responses")
        | _at("https://api.z.ai/api/anthropic", "anthropic-messages"),
        ("ZAI_API_KEY",),
    ),
    _openai_like("github-models", "https://models.github.ai/inference", key="GITHUB_TOKEN"),
    _openai_like("openrouter", "{OPENROUTER_BASE_URL|https://openrouter.ai/api/v1}"),
    _openai_like("litellm", "{LITELLM_BASE_URL}"),
    _openai_like("kimi", "{KIMI_BASE_URL}", "kimi", "moonshot"),
    _openai_like("minimax", "{MINIMAX_BASE_URL}", "minimax"),
    _openai_like("qwen-dashscope", "{QWEN_BASE_URL}", "qwen", key="QWEN_API_KEY"),
    _openai_like("glm", "{GLM_BASE_URL}", "glm"),
    _openai_like("xiaomi", "{XIAOMI_BASE_URL}", "xiaomi", "mimo"),
    _openai_like("hunyuan", "{HUNYUAN_BASE_URL}", "hunyuan"),
    _openai_like("doubao-seed-2-lite", "{DOUBAO_VOLCES_BASE_URL}", "doubao-seed-2-lite"),
    _openai_like("doubao-seed-2-pro", "{DOUBAO_VOLCES_BASE_URL}", "doubao-seed-2-pro"),
    _openai_like("deepseek", "{DEEPSEEK_BASE_URL|https://api.deepseek.com/v1}", "deepseek"),
)

_VERTEX: Final = {
    "vertex_project": "GOOGLE_CLOUD_PROJECT",
    "vertex_location": "GOOGLE_CLOUD_LOCATION",
    "vertex_credentials": "GOOGLE_APPLICATION_CREDENTIALS_JSON",
}

_TRANSLATED: Final = (
    Provider(
        "aws-bedrock",
        {},
        ("AWS_BEARER_TOKEN_BEDROCK",),
        translated=Translated(
            "bedrock",
            {"api_key": "AWS_BEARER_TOKEN_BEDROCK", "aws_region_name": "AWS_REGION"},
            {"aws_bedrock_runtime_endpoint": "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"},
        ),
    ),
    Provider(
        "google-vertex",
        {},
        ("GOOGLE_APPLICATION_CREDENTIALS_JSON",),
        translated=Translated("vertex_ai", _VERTEX, {"api_base": "GOOGLE_VERTEX_BASE_URL"}),
    ),
    Provider(
        "anthropic-vertex",
        {},
        ("GOOGLE_APPLICATION_CREDENTIALS_JSON",),
        limits_cached=False,
        translated=Translated("vertex_ai", _VERTEX, {"api_base": "ANTHROPIC_VERTEX_BASE_URL"}),
    ),
)

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider for provider in (*_SPEAKING, *_TRANSLATED)
}
"""Providers by name."""

CUSTOM: Final = Provider(
    "custom", _at(f"{{{CUSTOM_URL}}}", "openai-completions", "openai-responses"), (CUSTOM_KEY,)
)
"""An address of the user's own, which needs no key; `vllm/` is another word for it."""
