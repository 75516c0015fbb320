"""Where a trial's calls go, and how many there may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from benchflow_client.catalog.providers import Dialect

__all__ = ["Account", "Allowance", "Capture", "Sampling", "Target", "Translation"]


@dataclass(frozen=True, slots=True)
class Account:
    """For whom a provider counts calls, and in which of the fleet's limits they count.

    Attributes:
        name: Provider, variable of the key, and host: what waits together when the provider asks to. Empty =
            calls are not limited.
        buckets: Names of the limits.
        limits_cached: Whether tokens from the provider's cache count.
    """

    name: str = ""
    buckets: tuple[str, ...] = ()
    limits_cached: bool = True


class Capture(IntEnum):
    """What is asked of a model beside what the agent asks; each asks what those before it do."""

    NOTHING = 0
    LOGPROBS = 1  # the log probability of each token of an answer
    TOKENS = 2  # the ids of those tokens, and of the prompt's


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a model is asked for where the agent does not say; None = nothing.

    Attributes:
        temperature: How even the choice among words is.
        top_p: The most likely words that together have this share are chosen among.
        max_output_tokens: Tokens of one answer at most.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """What LiteLLM is told about a place, for calls that are translated on their way.

    Attributes:
        prefix: What the models of such a place begin with in its own names.
        parameters: Its parameters by name, keys among them.
    """

    prefix: str
    parameters: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """Where calls go.

    Attributes:
        provider: Name of the provider.
        model: The model that may be asked for.
        urls: Dialect -> base URL, filled in; empty where what translates is not started yet.
        key: The provider's key; None = it needs none. Never leaves this process but to the provider.
        account: For whom the provider counts.
        capture: What is asked for beside what the agent asks.
        bearer: Headers that go with a key which is an account's token, sent as `Authorization: Bearer`; None = it
            is sent as its dialect has it.
        sampling: What is asked for where the agent does not say.
        translation: What stands between; None = the provider speaks the dialects itself.
    """

    provider: str
    model: str
    urls: Mapping[Dialect, str]
    key: str | None = field(repr=False)
    account: Account = Account()
    capture: Capture = Capture.NOTHING
    bearer: Mapping[str, str] | None = None
    sampling: Sampling = Sampling()
    translation: Translation | None = None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be used; None = no cap.

    Attributes:
        cost_usd: US dollars.
        tokens: Input and output together.
    """

    cost_usd: float | None = None
    tokens: int | None = None
