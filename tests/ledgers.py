"""Short words for tests of the ledger: a header, a receipt, a claim, and whether counts add up."""

from __future__ import annotations

from benchflow_client.errors import JobNotFoundError
from benchflow_client.ledger.admission import Room
from benchflow_client.ledger.base import Claim, JobHeader, Ledger
from benchflow_client.schema.trial import Receipt

TTL_S = 30.0
SHORT_S = 0.05


def header(job: str = "j", *, total: int = 3, concurrency: int = 2) -> JobHeader:
    return JobHeader(
        job=job, total=total, concurrency=concurrency, max_attempts=3, owner="ana", queue="local",
        group_id="g", body_id="b", title="t", created_at=0,
    )  # fmt: skip


def receipt(index: int, *, outcome: str = "passed", reward: float | None = 1.0) -> Receipt:
    return Receipt(index, outcome, reward, "", 1, 2.5, None, None, f"t__{index}")


def claim(ledger: Ledger, index: int, *, owner: str = "w", ttl_s: float = TTL_S, attempts: int = 3) -> Claim:
    return ledger.claim("j", index, owner=owner, ttl_s=ttl_s, max_attempts=attempts)


def release(ledger: Ledger, job: str, *, limit: int) -> list[int]:
    """Admit trials of one job to a queue with room for any number."""
    try:
        room = Room(ledger.header(job).queue, 10_000)
    except JobNotFoundError:
        return []
    return [trial.index for trial in ledger.admit(room, limit=limit, only=job).trials]


def adds_up(ledger: Ledger) -> bool:
    progress = ledger.progress("j")
    return progress.header.total == progress.finished + progress.running + progress.waiting
