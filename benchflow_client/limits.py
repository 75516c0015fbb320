"""What the whole fleet may use of a sandbox kind, a provider or a model, for those that set it."""

from __future__ import annotations

from collections.abc import Sequence

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
            UsageError: There is no such kind of bucket.
        """
        if not any(bucket.startswith(kind) and bucket != kind for kind in BUCKETS):
            raise UsageError(
                f"{bucket!r} is no bucket of limits.",
                hint="Buckets: sandbox:KIND, provider:NAME, model:NAME, e.g. sandbox:docker.",
            )
        self._ledger.set_limit(bucket, limit)
