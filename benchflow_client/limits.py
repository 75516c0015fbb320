"""What the whole fleet may use of a sandbox kind, a provider, a model or a provider's key, for those that set it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import BUCKETS, Limit
from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.rates import Rates, Use
from benchflow_client.report import LimitRow

_KEY: Final = "key"
_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*")


class Limits:
    """The limits of a fleet; a change holds from the next trial, and within seconds for calls of models.

    Args:
        ledger: The fleet's ledger.
        rates: What calls of models use.
    """

    def __init__(self, ledger: Ledger, rates: Rates) -> None:
        self._ledger = ledger
        self._rates = rates

    def rows(self) -> Sequence[LimitRow]:
        """Return every limit, each with the trials in flight and the calls of the last minute that it counts."""
        in_flight, used = self._ledger.in_flight(), self._rates.used()
        return [
            LimitRow(
                bucket=bucket,
                live=limit.live,
                in_flight=in_flight.get(bucket, 0) if _counts_trials(bucket) else None,
                starts_per_s=limit.starts_per_s,
                requests_per_min=limit.requests_per_min,
                tokens_per_min=limit.tokens_per_min,
                requests_last_min=None if limit.requests_per_min is None else use.requests,
                tokens_last_min=None if limit.tokens_per_min is None else use.tokens,
            )
            for bucket, limit in self._ledger.limits().items()
            for use in [used.get(bucket, Use())]
        ]

    def closed(self) -> Mapping[str, float]:
        """Return the providers that asked to wait, each with its key's variable, and for how many seconds more."""
        return self._rates.known().closed

    def set(self, bucket: str, limit: Limit | None) -> None:
        """Let a bucket use no more than this.

        Args:
            bucket: `sandbox:<kind>`, `provider:<name>`, `model:<name>`, or `key:<variable>` of the worker
                that holds a provider's key.
            limit: None = no limit.

        Raises:
            UsageError: There is no such bucket, or it does not count what is limited.
        """
        check_bucket(bucket)
        _check_counted(bucket, limit or Limit())
        self._ledger.set_limit(bucket, limit)


def check_bucket(bucket: str) -> None:
    """Refuse a name under which nothing is ever counted.

    Raises:
        UsageError: Says which names there are.
    """
    kind, colon, name = bucket.partition(":")
    if kind == _KEY and name and not _VARIABLE.fullmatch(name):
        # Not quoted: it may be the key itself.
        raise UsageError(
            "What stands behind key: is no name of a variable.",
            hint="Give the variable of the worker that holds the key, never the key: key:OPENAI_API_KEY.",
        )
    if kind + colon not in BUCKETS or not name or bucket != "".join(bucket.split()):
        problem = f"{bucket!r} is no bucket of limits." if bucket else "No bucket is named."
        raise UsageError(
            problem,
            hint="Buckets: sandbox:KIND, provider:NAME, model:NAME, key:VARIABLE, e.g. sandbox:docker.",
        )
    if kind == "sandbox" and name not in SANDBOXES:
        near = difflib.get_close_matches(name, SANDBOXES, n=1)
        suggestion = f"Did you mean sandbox:{near[0]}? " if near else ""
        raise UsageError(
            f"{bucket!r} is no bucket of limits: there is no such kind of sandbox.",
            hint=f"{suggestion}Kinds: {', '.join(SANDBOXES)}.",
        )


def _counts_trials(bucket: str) -> bool:
    """Return whether it is known of a trial before it runs."""
    return not bucket.startswith(f"{_KEY}:")


def _check_counted(bucket: str, limit: Limit) -> None:
    """Refuse a limit of what a bucket does not count."""
    if not _counts_trials(bucket) and (limit.live is not None or limit.starts_per_s is not None):
        raise UsageError(
            f"{bucket} counts calls of models, not trials: a trial's key is known when it runs.",
            hint="Give --requests-per-min or --tokens-per-min, or limit the trials of provider:NAME.",
        )
    if bucket.startswith("sandbox:") and limit.has_rate:
        raise UsageError(
            f"{bucket} counts trials, not calls of models.",
            hint="Give --live or --starts-per-s, or limit the calls of provider:NAME, model:NAME or key:VARIABLE.",
        )
