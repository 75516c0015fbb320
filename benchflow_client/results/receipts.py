"""Receipts read back from the store, for a ledger that has lost them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import StoreError
from benchflow_client.results.read import JobResults, stored_results
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import SCORED, Receipt, TrialResult
from benchflow_client.store.base import Store
from benchflow_client.store.layout import rows_key


def stored_receipts(store: Store, found: JobResults) -> list[Receipt]:
    """Return the receipts of every finished trial of a job, in order of index.

    A closed job's rows hold them all; those of an interrupted one are made of the
    results that were published, but for those after which another attempt was to come:
    such a result is written before its trial is given back. Where a closed job was taken up again and that was
    interrupted too, verdicts published since count before the rows.

    Raises:
        StoreError: A document cannot be read.
    """
    if found.summary is None:
        results = stored_results(store, found.plan)
        return [Receipt.of(result) for result in results if not _wants_retry(found.plan, result)]
    receipts = {receipt.trial_index: receipt for receipt in _of_rows(store, found.plan.job)}
    if any(receipt.outcome not in SCORED for receipt in receipts.values()):
        known = {receipt.folder for receipt in receipts.values()}
        for result in stored_results(store, found.plan, beside=known):
            if result.outcome in SCORED and receipts[result.index].outcome not in SCORED:
                receipts[result.index] = Receipt.of(result)
    return [receipts[index] for index in sorted(receipts)]


def _wants_retry(plan: Plan, result: TrialResult) -> bool:
    """Return whether a worker would have let another attempt be made after this one."""
    if result.reward is not None or result.attempt >= plan.spec.max_attempts:
        return False
    kinds = (FAILURES.get(failure.code) for failure in result.failures)
    return any(kind is not None and kind.is_retried for kind in kinds)


def _of_rows(store: Store, job: str) -> Iterator[Receipt]:
    for line in store.get(rows_key(job)).splitlines():
        try:
            row = json.loads(line)
            yield Receipt(
                trial_index=row["index"],
                outcome=row["outcome"],
                reward=row["reward"],
                code=row["code"] or "",
                attempts=row["attempt"],
                wall_s=row["seconds"],
                cost_usd=row["cost_usd"],
                tokens=row["tokens"],
                folder=row["folder"] or "",
                skill_uses=row.get("skill_uses"),
            )
        except (ValueError, KeyError) as error:
            raise StoreError(
                f"{rows_key(job)} has a line that is no row of a trial.",
                hint="Restore the file, or remove the job's summary.json to read the single results instead.",
            ) from error
