"""The chord's body: receipts become the job's summary."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from benchflow_client.ledger.base import JobProgress, JobState, Ledger
from benchflow_client.results.regrades import write_regrades
from benchflow_client.results.rows import receipt_row
from benchflow_client.schema.trial import Receipt
from benchflow_client.spending import account_of
from benchflow_client.store.base import Store
from benchflow_client.store.documents import json_lines, write_document
from benchflow_client.store.layout import rows_key, summary_key
from benchflow_client.summary import aggregate
from benchflow_workers.jobs import JobBook

logger = logging.getLogger(__name__)


def summarize(
    job: str, parts: Sequence[Sequence[object]] | None, *, ledger: Ledger, store: Store, jobs: JobBook
) -> bool:
    """Write a finished job's summary and close it.

    Args:
        job: The job.
        parts: What the chord gathered, `[index, outcome, reward]` each; None = called
            by the reconciler. The ledger's receipts count; a difference is logged.
        ledger: The ledger.
        store: The store.
        jobs: Plans and headers.

    Returns:
        False when there was nothing to do: closed already, or trials still run.

    Guarantees: safe to call twice; the summary is written before the job is closed.
    """
    progress = ledger.progress(job)
    if progress.state is JobState.CLOSED or progress.finished < progress.header.total:
        return False
    jobs.forget(job)  # a closed job's name may have been given to another
    _, plan = jobs.get(job)
    receipts = ledger.receipts(job)
    _compare(job, parts, receipts)
    summary = aggregate(plan, receipts, elapsed_s=elapsed_s(progress), account=account_of(progress))
    store.put(rows_key(job), json_lines(receipt_row(plan, receipt) for receipt in receipts))
    write_regrades(store, plan, receipts)
    write_document(store, summary_key(job), summary)
    is_closed = ledger.close_job(job)
    jobs.forget(job)
    logger.info("job %s closed: %s", job, dict(progress.outcomes), extra={"action": "job_closed", "job": job})
    return is_closed


def elapsed_s(progress: JobProgress) -> float:
    """Return the wall clock of a job in seconds, from its opening to its last receipt."""
    return max(0.0, progress.last_finished_at - progress.header.created_at)


def _compare(job: str, parts: Iterable[Sequence[object]] | None, receipts: Sequence[Receipt]) -> None:
    if parts is None:
        return
    counted = {receipt.trial_index: receipt.outcome for receipt in receipts}
    wrong = [part for part in parts if counted.get(part[0]) != part[1]]  # type: ignore[call-overload]
    if wrong:
        logger.error(
            "chord and ledger of %s differ in %d trials, first %s; the ledger counts", job, len(wrong), wrong[0],
            extra={"action": "chord_differs", "job": job},
        )  # fmt: skip
