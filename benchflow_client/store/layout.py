"""Where everything stands in a store: pure key arithmetic, no I/O."""

from __future__ import annotations

BUNDLES = ".bundles"
"""Prefix of content-addressed task and agent bundles; no job name starts with a dot."""


def bundle_key(digest: str) -> str:
    """Return the key of a bundle by its digest (64 hex digits)."""
    return f"{BUNDLES}/{digest[:2]}/{digest}.tar"


def job_prefix(job: str) -> str:
    """Return the prefix of all documents of a job."""
    return f"{job}/"


def spec_key(job: str) -> str:
    """Return the key of what was submitted; write-once, so it also claims the job's name."""
    return f"{job}/spec.json"


def plan_key(job: str) -> str:
    """Return the key of the expanded plan."""
    return f"{job}/plan.json"


def summary_key(job: str) -> str:
    """Return the key of the job's summary; its presence means the job is closed."""
    return f"{job}/summary.json"


def rows_key(job: str) -> str:
    """Return the key of the file with one row per trial."""
    return f"{job}/results.jsonl"


def attempt_prefix(job: str, folder: str) -> str:
    """Return the prefix of all documents of one attempt of a trial."""
    return f"{job}/{folder}/"


def result_key(job: str, folder: str) -> str:
    """Return the key of an attempt's result; written last."""
    return f"{job}/{folder}/result.json"
