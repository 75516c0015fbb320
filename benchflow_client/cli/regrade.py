"""`bench regrade`: judge the kept workspaces of a job again, with the verifiers as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import whole_number
from benchflow_client.cli.run import INTERRUPTED
from benchflow_client.plan.regrade import RegradeRequest
from benchflow_client.report import Column, Line, Report, Row, Table
from benchflow_client.results.regrades import Judgement, RegradeSummary
from benchflow_client.wording import plural

_LISTED = 50  # trials; `--json` has all


@dataclass(frozen=True, slots=True)
class RegradeFlags:
    """Which trials, and whose verifiers."""

    tasks: Annotated[
        str | None, Parameter(help="Tasks with the verifiers to use; nothing given: where the job had them.")
    ] = None
    task: Annotated[
        tuple[str, ...],
        Parameter(help="Only tasks whose name matches this glob; repeat for several.", negative=()),
    ] = ()
    trial: Annotated[str, Parameter(help="Only the trial with this id.")] = ""
    reason: Annotated[str, Parameter(help="Why, for others to read.")] = ""
    concurrency: Annotated[int, Parameter(help="Trials at once.", converter=whole_number)] = 4
    sandbox: Annotated[
        Literal["docker", "local"] | None,
        Parameter(help="Where the tests run; nothing given: where the agents of the job ran."),
    ] = None


_ALL = RegradeFlags()


def regrade(
    job: Annotated[str, Parameter(help="Name of the job, a unique prefix of it, or @last.")],
    *,
    flags: Annotated[RegradeFlags, Parameter(name="*")] = _ALL,
    jobs_dir: Annotated[Path, Parameter(help="Jobs folder, where no fleet is configured.")] = Path("jobs"),
    json: Annotated[bool, Parameter(help="Write JSON to stdout.", negative=())] = False,
) -> int:
    """Judge the kept workspaces of a job with the present verifiers; its results stay as they are."""
    ask = RegradeRequest(*astuple(flags))
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.regrade(job, ask)
        try:
            with render.open_progress() as display:
                for view in handle.watch():
                    display.update(view)
        except KeyboardInterrupt:
            render.render_detached(handle.name)
            return INTERRUPTED
        handle.wait()
        summary = client.regraded(handle)
    if json:
        render.print_json(summary.model_dump(mode="json"))
    render.render_report(regrade_report(summary))
    return 1 if any(item.status != "complete" for item in summary.trials) else 0


def regrade_report(summary: RegradeSummary) -> Report:
    """Return what a regrade changed: a line of counts, each trial that changed, each that was refused."""
    counts = ", ".join(f"{count} {change}" for change, count in sorted(summary.changes.items()))
    changed = [item for item in summary.trials if item.change != "same" or item.status != "complete"]
    headline = f"{summary.job}: {plural(len(summary.trials), 'trial')} judged again · {counts}"
    return (
        Line(headline, label="regrade"),
        Table((Column(), Column(shrink=1), Column(), Column(shrink=2)), tuple(map(_row, changed[:_LISTED]))),
        *_refusals(summary),
        Line(
            f"the results of {summary.job} are as they were · all changes: its regrade-summary.json · "
            f"new verifier files: job {summary.id}",
            tone="dim",
        ),
    )


def _row(item: Judgement) -> Row:
    rewards = f"{_number(item.original_reward)} -> {_number(item.new_reward)}"
    return Row((item.change, item.trial, rewards, item.verifier_error or ""))


def _number(reward: float | None) -> str:
    return "–" if reward is None else f"{reward:.2f}"


def _refusals(summary: RegradeSummary) -> Iterator[Line]:
    for item in summary.refused[:_LISTED]:
        yield Line(f"{item.trial}: {item.reason}", label="refused", tone="warn")
    if len(summary.refused) > _LISTED:
        yield Line(f"{len(summary.refused) - _LISTED} more were refused: --json lists all", tone="dim")
