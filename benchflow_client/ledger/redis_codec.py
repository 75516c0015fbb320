"""How the ledger's records stand in Redis: flat text fields, and JSON for what is nested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import fields as fields_of

from benchflow_client.errors import JobNotFoundError
from benchflow_client.ledger.admission import Budget, Limit, Spent
from benchflow_client.ledger.base import JobHeader, JobProgress, JobState, WorkerRecord
from benchflow_client.schema.trial import Outcome, Receipt

MS = 1000
"""Milliseconds in a second: the scripts count in them."""

LIMITS_KEY, RATES_KEY, CLOSED_KEY = "bf:limits", "bf:rates", "bf:closed"
"""What the fleet may use, what it used, and which providers asked to wait; see the scripts."""

_CANCELLED = "cancelled:"
_RETRY = "retry:"


def encode_header(header: JobHeader) -> list[object]:
    """Return a header as field, value, field, value ...; without what the ledger sets itself."""
    fields = {**asdict(header), "lanes": json.dumps(header.lanes), "budget": encode_budget(header.budget)}
    del fields["created_at"]
    return [item for pair in fields.items() for item in pair]


def decode_header(job: str, fields: Mapping[str, str]) -> JobHeader:
    """Return the header of a job.

    Raises:
        JobNotFoundError: There are no fields.
    """
    if not fields:
        raise JobNotFoundError(f"No job {job!r} on this fleet.", hint="`bench jobs` lists them.")
    return JobHeader(
        job=job,
        total=int(fields["total"]),
        concurrency=int(fields["concurrency"]),
        max_attempts=int(fields["max_attempts"]),
        owner=fields["owner"],
        queue=fields["queue"],
        group_id=fields["group_id"],
        body_id=fields["body_id"],
        title=fields["title"],
        created_at=int(fields["created_at"]) / MS,
        epoch=int(fields.get("epoch", 0)),
        weight=float(fields.get("weight", 1)),
        priority=int(fields.get("priority", 5)),
        lanes=tuple(tuple(lane) for lane in json.loads(fields.get("lanes", "[[]]"))),
        breaker=int(fields.get("breaker", 0)),
        budget=Budget(**json.loads(fields.get("budget") or "{}")),
    )


def decode_progress(job: str, fields: Mapping[str, str], *, running: int, released: int) -> JobProgress:
    """Return the counts of a job."""
    header = decode_header(job, fields)
    outcomes = {outcome.value: int(fields.get(f"outcome:{outcome.value}", 0)) for outcome in Outcome}
    return JobProgress(
        header=header,
        state=JobState(fields["state"]),
        outcomes=outcomes,
        running=running,
        waiting=header.total - running - sum(outcomes.values()),
        released=released,
        reward_sum=float(fields.get("reward_sum", 0)),
        retried=int(fields.get("retried", 0)),
        cancelled_by=fields.get("cancelled_by", ""),
        cancel_reason=fields.get("cancel_reason", ""),
        paused_by=fields.get("paused_by", ""),
        pause_reason=fields.get("pause_reason", ""),
        first_started_at=int(fields.get("first_started_at", 0)) / MS,
        last_finished_at=int(fields.get("last_finished_at", 0)) / MS,
        stop_cause=fields.get("stop_cause", ""),
        stop_code=fields.get("stop_code", ""),
        spent=_spent(fields),
        retry_codes={
            name.removeprefix(_RETRY): int(count) for name, count in fields.items() if name.startswith(_RETRY)
        },
        cancelled_trials={
            int(name.removeprefix(_CANCELLED)): (who, why)
            for name, text in fields.items()
            if name.startswith(_CANCELLED)
            for who, why in [json.loads(text)]
        },
    )


def encode_budget(budget: Budget) -> str:
    """Return the caps as JSON, without those that are not set; empty = none is."""
    caps = {name: cap for name, cap in asdict(budget).items() if cap is not None}
    return json.dumps(caps) if caps else ""


def encode_limit(limit: Limit) -> str:
    """Return a limit as JSON, without what is not set."""
    return json.dumps({name: value for name, value in asdict(limit).items() if value is not None})


def decode_limit(text: str) -> Limit:
    """Return the limit that `encode_limit` wrote, without what a later version may limit."""
    known = {field.name for field in fields_of(Limit)}
    return Limit(**{name: value for name, value in json.loads(text).items() if name in known})


def encode_usage(receipt: Receipt) -> tuple[str, str, str]:
    """Return cost, tokens and seconds of an attempt as exact text; empty = unknown."""
    return _text(receipt.cost_usd), _text(receipt.tokens), _text(receipt.wall_s)


def decode_worker(text: str) -> WorkerRecord:
    """Return what a worker said about itself."""
    fields = json.loads(text)
    return WorkerRecord(**{
        **fields,
        "queues": tuple(fields["queues"]),
        "sandboxes": tuple(fields["sandboxes"]),
    })


def _spent(fields: Mapping[str, str]) -> Spent:
    return Spent(
        cost_usd=float(fields.get("spent_usd", 0)),
        tokens=round(float(fields.get("spent_tokens", 0))),
        sandbox_s=float(fields.get("spent_s", 0)),
        trials=int(fields.get("admitted", 0)),
        unknown_cost=int(fields.get("unknown_usd", 0)),
        unknown_tokens=int(fields.get("unknown_tokens", 0)),
    )


def _text(number: float | None) -> str:
    return "" if number is None else repr(number)
