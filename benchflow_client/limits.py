"""What the whole fleet may use of a sandbox kind, a provider or a model, for those that set it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import BUCKETS, Limit
from benchflow_client.ledger.base import Ledger
from benchflow_client.report import LimitRow


class Limits:
    """The limits of a fleet; a change holds from the next trial on.

    Args:
        ledger: The fleet's ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def rows(self) -> Sequence[LimitRow]:
        """Return every limit, each with the trials in flight that it counts."""
        in_flight = self._ledger.in_flight()
        return [
            LimitRow(bucket, limit.live, in_flight.get(bucket, 0), limit.starts_per_s, limit.requests_per_min)
            for bucket, limit in self._ledger.limits().items()
        ]

    def set(self, bucket: str, limit: Limit | None) -> None:
        """Let a bucket use no more than this.

        Args:
            bucket: `sandbox:<kind>`, `provider:<name>` or `model:<name>`.
            limit: None = no limit.

        Raises:
            UsageError: There is no such bucket.
        """
        check_bucket(bucket)
        self._ledger.set_limit(bucket, limit)


def check_bucket(bucket: str) -> None:
    """Refuse a name under which nothing is ever counted.

    Raises:
        UsageError: Says which names there are.
    """
    kind, colon, name = bucket.partition(":")
    if kind + colon not in BUCKETS or not name or bucket != "".join(bucket.split()):
        problem = f"{bucket!r} is no bucket of limits." if bucket else "No bucket is named."
        raise UsageError(
            problem, hint="Buckets: sandbox:KIND, provider:NAME, model:NAME, e.g. sandbox:docker."
        )
    if kind == "sandbox" and name not in SANDBOXES:
        near = difflib.get_close_matches(name, SANDBOXES, n=1)
        suggestion = f"Did you mean sandbox:{near[0]}? " if near else ""
        raise UsageError(
            f"{bucket!r} is no bucket of limits: there is no such kind of sandbox.",
            hint=f"{suggestion}Kinds: {', '.join(SANDBOXES)}.",
        )
