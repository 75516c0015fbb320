"""What a call cost: prices of a maintained table, with the operator's own on top."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

from genai_prices import Usage, calc_price
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchflow_client.errors import WorkerError
from benchflow_workers.gateway.dialect import Tokens

__all__ = ["Cost", "Prices", "read_prices"]

_SOURCE: Final = f"genai-prices {importlib.metadata.version('genai-prices')}"
_OWN: Final = "own table"
_MILLION: Final = Decimal(1_000_000)
_SAME_AS: Final = {
    "us-openai": "openai",
    "azure-foundry-openai": "azure",
    "azure-foundry-anthropic": "azure",
    "aws-bedrock": "aws",
    "google-vertex": "google",
    "anthropic-vertex": "google",
    "kimi": "moonshotai",
}
"""Providers that the table knows by another name."""


class Cost(NamedTuple):
    """US dollars of a call.

    Attributes:
        usd: The sum; None = nobody knows a price.
        source: Where the price is from, with its version; empty = unknown.
    """

    usd: float | None
    source: str


class OwnPrice(BaseModel):
    """US dollars for a million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Decimal = Field(ge=0, description="Of the request.")
    output: Decimal = Field(ge=0, description="Of the answer.")
    cache_read: Decimal | None = Field(default=None, ge=0, description="From a cache; None = as input.")
    cache_write: Decimal | None = Field(default=None, ge=0, description="To a cache; None = as input.")

    def of(self, tokens: Tokens) -> Decimal:
        """Return what so many tokens cost."""
        fresh = max(0, tokens.input - tokens.cache_read - tokens.cache_write)
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        parts = (
            fresh * self.input,
            tokens.cache_read * read,
            tokens.cache_write * write,
            tokens.output * self.output,
        )
        return sum(parts, Decimal(0)) / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of models.

    Attributes:
        own: The operator's: `provider/model` or `model` -> price.
    """

    own: Mapping[str, OwnPrice] = field(default_factory=dict)
    _unpriced: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False, compare=False)

    def cost(self, provider: str, model: str, tokens: Tokens) -> Cost:
        """Return what a call cost; a model without a price costs an unknown sum, never nothing."""
        own = self.own.get(f"{provider}/{model}") or self.own.get(model)
        if own is not None:
            return Cost(float(own.of(tokens)), _OWN)
        if (provider, model) in self._unpriced:  # the table looks through all it has each time
            return Cost(None, "")
        usage = Usage(
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cache_read_tokens=tokens.cache_read,
            cache_write_tokens=tokens.cache_write,
        )
        try:
            price = calc_price(usage, model_ref=model, provider_id=_SAME_AS.get(provider, provider))
        except LookupError:
            self._unpriced.add((provider, model))
            return Cost(None, "")
        except ValueError:
            return Cost(None, "")
        return Cost(float(price.total_price), _SOURCE)


def read_prices(file: Path | None) -> Prices:
    """Return prices with the operator's own of a JSON file: `{"model": {"input": 2.5, "output": 10}}`.

    Raises:
        WorkerError: The file cannot be read, or a price is none.
    """
    if file is None:
        return Prices()
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        return Prices({name: OwnPrice.model_validate(price) for name, price in table.items()})
    except (OSError, ValueError, AttributeError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise WorkerError(
            f"Prices cannot be read from {file}: {reason}",
            hint='It is JSON: {"model": {"input": 2.5, "output": 10}}, in US dollars for a million tokens.',
        ) from error
