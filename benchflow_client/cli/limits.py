"""`bench limits`: what the whole fleet may use of a sandbox kind, a provider, a model or a provider's key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import whole_number
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.errors import UsageError
from benchflow_client.ledger.admission import Limit
from benchflow_client.limits import check_bucket
from benchflow_client.report import limits_report

Verb = Annotated[
    Literal["list", "set", "clear"],
    Parameter(
        help="list: what holds now; set: let a bucket use no more than the flags say; clear: no limit."
    ),
]
Bucket = Annotated[
    str,
    Parameter(
        help="sandbox:KIND, provider:NAME (what stands before the model's slash), model:NAME, or key:VARIABLE of the "
        "workers that holds a provider's key."
    ),
]


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """What a bucket may use; what is not given is not limited."""

    live: Annotated[
        int | None, Parameter(help="Trials in flight at once, 0 = start none.", converter=whole_number)
    ] = None
    starts_per_s: Annotated[float | None, Parameter(help="Trials that start per second.")] = None
    requests_per_min: Annotated[
        float | None, Parameter(help="Requests to models per minute, as all workers make them.")
    ] = None
    tokens_per_min: Annotated[
        float | None, Parameter(help="Tokens of models per minute, input and output together.")
    ] = None


_NO_LIMIT = LimitFlags()


def limits(
    verb: Verb = "list",
    bucket: Bucket = "",
    *,
    to: Annotated[LimitFlags, Parameter(name="*")] = _NO_LIMIT,
    jobs_dir: JobsDir = Path("jobs"),
    json: Json = False,
) -> int:
    """Show or change the limits of the fleet.

    A change holds from the next trial on, and within seconds for calls of models.
    """
    limit = _limit(verb, bucket, to)
    with Client(jobs_dir=jobs_dir) as client:
        fleet = client.limits()
        if verb != "list":
            fleet.set(bucket, limit)
        rows = [row for row in fleet.rows() if verb != "list" or bucket in {"", row.bucket}]
        closed = {} if bucket else fleet.closed()
    if json:
        render.print_json([row._asdict() for row in rows])
        return 0
    if rows or closed:
        render.render_report(limits_report(rows, closed))
    if not rows:
        shown = f"no limit for {bucket}" if verb == "list" and bucket else "no limits"
        render.render_notice(f"{shown} · set one: bench limits set {bucket or 'sandbox:docker'} --live 8")
    return 0


def _limit(verb: str, bucket: str, flags: LimitFlags) -> Limit | None:
    """Return what is to be set; refuses what does not fit the verb before any fleet is asked."""
    if verb != "list" or bucket:
        check_bucket(bucket)
    if verb != "set":
        if flags != _NO_LIMIT:
            raise UsageError(
                f"`bench limits {verb}` changes no number.",
                hint="To change one: bench limits set BUCKET --live N",
            )
        return None
    if flags == _NO_LIMIT:
        raise UsageError(
            f"Nothing says what {bucket} may use.",
            hint="Give --live, --starts-per-s, --requests-per-min or --tokens-per-min; to take the limit away: "
            f"bench limits clear {bucket}",
        )
    return Limit(flags.live, flags.starts_per_s, flags.requests_per_min, flags.tokens_per_min)
