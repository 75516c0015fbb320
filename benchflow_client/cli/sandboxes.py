"""`bench sandboxes`: what exists, what should not, and its removal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.doctor import ask_host
from benchflow_client.report import sandboxes_report

Verb = Annotated[
    Literal["list", "audit", "clean"],
    Parameter(
        help="list: what the ledger has on record; audit: compare this host's sandboxes with the "
        "ledger, exit 1 on a leftover; clean: remove leftovers first."
    ),
]


def sandboxes(verb: Verb = "list", *, jobs_dir: JobsDir = Path("jobs"), json: Json = False) -> int:
    """List, audit or clean the fleet's sandboxes; those of other fleets are never touched."""
    with Client(jobs_dir=jobs_dir) as client:
        if verb == "list":
            rows = [
                {
                    "kind": r.kind,
                    "id": r.id or r.name,
                    "state": "recorded",
                    "trial": f"{r.job} #{r.index}",
                    "worker": r.worker,
                }
                for r in client.sandboxes()
            ]
        else:
            rows = ask_host(["sandboxes", verb], client.worker_environ())
    if json:
        render.print_json(rows)
    else:
        render.render_report(sandboxes_report(rows))
    return int(any(row["state"] in {"orphan", "stale"} for row in rows))
