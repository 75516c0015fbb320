"""Where a trial's calls go, and how many there may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchflow_client.catalog.providers import Dialect

__all__ = ["Allowance", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where calls go.

    Attributes:
        provider: Name of the provider.
        model: The model that may be asked for.
        urls: Dialect -> base URL, filled in.
        key: The provider's key; None = it needs none. Never leaves this process but to the provider.
    """

    provider: str
    model: str
    urls: Mapping[Dialect, str]
    key: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be used; None = no cap.

    Attributes:
        cost_usd: US dollars.
        tokens: Input and output together.
    """

    cost_usd: float | None = None
    tokens: int | None = None
