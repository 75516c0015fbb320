"""Commands about recorded jobs: watch, jobs, results, cancel, fetch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchflow_client.api import Client
from benchflow_client.cli import render
from benchflow_client.cli.flags import CapFlags
from benchflow_client.cli.resuming import choice_report
from benchflow_client.cli.run import INTERRUPTED, exit_code, follow_to_end, show_results
from benchflow_client.handle import StoredJob
from benchflow_client.ledger.base import TrialCancel
from benchflow_client.plan.retry import Choice
from benchflow_client.report import judged_again_report, trials_report
from benchflow_client.results.evidence import evidence_of
from benchflow_client.results.rows import published_row, write_csv
from benchflow_client.schema.trial import Outcome

_NO_CAPS = CapFlags()
_TRIAL_CANCEL = {
    TrialCancel.RUNNING: "{trial} is being cancelled",
    TrialCancel.WAITING: "{trial} is cancelled",
    TrialCancel.FINISHED: "{trial} was over before",
}

JobName = Annotated[str, Parameter(help="Name of the job, a unique prefix of it, or @last.")]
JobsDir = Annotated[Path, Parameter(help="Jobs folder, where no fleet is configured.")]
Json = Annotated[bool, Parameter(help="Write JSON to stdout.", negative=())]


def watch(job: JobName = "@last", *, jobs_dir: JobsDir = Path("jobs"), json: Json = False) -> int:
    """Watch a job until it ends; Ctrl-C stops watching, not the job."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.stored_job(job)
        if isinstance(handle, StoredJob):
            # Its fleet has ended, so there is nothing to wait for.
            return _show_stored(handle, is_json=json)
        try:
            if json:
                render.print_json_lines(view._asdict() for view in handle.watch(poll_s=1.0))
            else:
                with render.open_progress() as display:
                    for view in handle.watch():
                        display.update(view)
        except KeyboardInterrupt:
            render.render_detached(handle.name)
            return INTERRUPTED
        if json:
            return 0
        return show_results(handle, handle.wait(), folder=handle.name, is_json=False)


def _show_stored(job: StoredJob, *, is_json: bool) -> int:
    summary = job.summary()
    if is_json:
        render.print_json(summary.model_dump(mode="json"))
    render.render_summary(summary)
    render.render_failures(summary, evidence=evidence_of(job.trials, summary))
    return exit_code(summary)


def _show_idle(job: StoredJob) -> int:
    """Say that a job does not run: no fleet runs, or the one that does has forgotten it."""
    render.render_notice(f"{job.name} does not run: no fleet knows it · go on: bench resume {job.name}")
    return 0


def jobs(*, jobs_dir: JobsDir = Path("jobs"), json: Json = False) -> int:
    """List jobs, newest first."""
    with Client(jobs_dir=jobs_dir) as client:
        rows = client.job_rows()
    if json:
        render.print_json([row._asdict() for row in rows])
    else:
        render.render_jobs(rows)
    return 0


def results(
    job: JobName = "@last",
    *,
    jobs_dir: JobsDir = Path("jobs"),
    failed: Annotated[bool, Parameter(help="List every trial that did not pass.", negative=())] = False,
    trials: Annotated[bool, Parameter(help="List every trial.", negative=())] = False,
    json: Json = False,
    csv: Annotated[bool, Parameter(help="Write one row a trial as CSV to stdout.", negative=())] = False,
) -> int:
    """Show the numbers of a job, finished or not."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.stored_job(job)
        if csv:
            plan = handle.results().plan
            regrades = handle.regrades()
            write_csv((published_row(plan, trial, regrades) for trial in handle.trials()), sys.stdout)
            return 0
        summary, regrades = handle.summary(), handle.regrades()
        if json:
            again = {name: judgement.model_dump(mode="json") for name, judgement in regrades.items()}
            render.print_json({**summary.model_dump(mode="json"), **({"regrades": again} if again else {})})
            return 0
        render.render_summary(summary)
        render.render_report(judged_again_report(regrades.values()))
        render.render_failures(summary, evidence=evidence_of(handle.trials, summary))
        if failed or trials:
            plan = handle.results().plan
            wanted = [
                published_row(plan, trial, regrades)
                for trial in handle.trials()
                if trials or trial.receipt.outcome != Outcome.PASSED.value
            ]
            render.render_report(trials_report(wanted))
    return 0


def cancel(
    job: Annotated[str, Parameter(help="Name of the job or a unique prefix of it, @last, or a trial's id.")],
    *,
    reason: Annotated[str, Parameter(help="Why, for others to read.")] = "",
    jobs_dir: JobsDir = Path("jobs"),
) -> int:
    """Stop a job or one trial: what waits at once, what runs within seconds; both count as cancelled."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.stored_job(job.partition(".")[0])
        if isinstance(handle, StoredJob):
            return _show_idle(handle)
        if "." in job:
            answer = handle.cancel_trial(job, by=client.settings.user, reason=reason)
            render.render_notice(_TRIAL_CANCEL[answer].format(trial=job))
            return 0
        is_first = handle.cancel(by=client.settings.user, reason=reason)
        name = handle.name
    render.render_notice(f"{name} is being cancelled" if is_first else f"{name} was over or cancelled before")
    return 0


def pause(
    job: JobName,
    *,
    reason: Annotated[str, Parameter(help="Why, for others to read.")] = "",
    jobs_dir: JobsDir = Path("jobs"),
) -> int:
    """Start no more trials of a job until `bench resume`; running ones go on."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.stored_job(job)
        if isinstance(handle, StoredJob):
            return _show_idle(handle)
        is_paused = handle.pause(by=client.settings.user, reason=reason)
        name = handle.name
    render.render_notice(
        f"{name} is paused · go on: bench resume {name}" if is_paused else f"{name} is not open"
    )
    return 0


def resume(
    job: JobName,
    *,
    retry: Annotated[
        tuple[str, ...],
        Parameter(
            help="What to run again of a job that ended: unscored, errored, cancelled, not_started or a "
            "failure code; repeat for several. Nothing given: what another execution may change.",
            negative=(),
        ),
    ] = (),
    caps: Annotated[CapFlags, Parameter(name="*")] = _NO_CAPS,
    jobs_dir: JobsDir = Path("jobs"),
) -> int:
    """Go on with a paused, stopped or ended job; verdicts are kept."""
    choices: list[Choice] = []

    def announce(choice: Choice) -> None:
        choices.append(choice)
        render.render_report(choice_report(choice))

    given = caps.caps()
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.resume(job, retry, caps=given, on_choice=announce)
        if handle is None:
            name = choices[0].plan.job
            render.render_notice(f"{name}: nothing to run again; every trial keeps its result")
            return 0
        if client.is_embedded and choices:
            # This command's own fleet ends with it, so it stays until the job has ended.
            return follow_to_end(client, handle, folder=jobs_dir / handle.name, choice=choices[0])
        render.render_notice(f"{handle.name} goes on · watch: bench watch {handle.name}")
    return 0


def recover(
    job: Annotated[str, Parameter(help="Name of the job.")], *, jobs_dir: JobsDir = Path("jobs")
) -> int:
    """Take up a job of the store that the fleet does not know; finished trials are not run again."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.recover(job)
        if client.is_embedded:
            return follow_to_end(client, handle, folder=jobs_dir / handle.name)
        render.render_notice(f"{handle.name} is on the fleet · watch: bench watch {handle.name}")
    return 0


def fetch(
    job: JobName,
    folder: Annotated[Path, Parameter(help="Folder to copy into.")],
    *,
    jobs_dir: JobsDir = Path("jobs"),
) -> int:
    """Copy all documents of a job into a folder; run it again to go on or to bring it up to date."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.stored_job(job)
        count = handle.fetch(folder)
    render.render_notice(f"{count} documents of {handle.name} in {folder}")
    return 0
