"""`bench chaos`: hurt a job of its own on the fleet and check that every promise holds."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from benchflow_client import settings as settings_module
from benchflow_client.api import Client
from benchflow_client.chaos.session import ChaosOptions, Secret, run_chaos
from benchflow_client.chaos.table import chaos_report
from benchflow_client.cli import render
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.errors import StoreError, UsageError
from benchflow_client.schema.job import SandboxKind
from benchflow_client.store.documents import encode

_Seconds = Number(gt=0)
_Count = Number(gte=1)


@dataclass(frozen=True, slots=True)
class JobFlags:
    """The job that is hurt."""

    sandbox: Annotated[SandboxKind, Parameter(help="Kind of sandbox of its trials.")] = "auto"
    trials: Annotated[int, Parameter(help="Trials of its job.", validator=_Count)] = 40
    concurrency: Annotated[int, Parameter(help="Trials at once.", validator=_Count)] = 8
    trial_s: Annotated[
        float, Parameter(help="Seconds the agent takes; null sandboxes run none.", validator=_Seconds)
    ] = 1.0


@dataclass(frozen=True, slots=True)
class FaultFlags:
    """What is done to it."""

    seed: Annotated[
        int | None, Parameter(help="The same seed makes the same choices; none given: a new one, told.")
    ] = None
    seconds: Annotated[float, Parameter(help="No fault is injected after so many.", validator=_Seconds)] = (
        60.0
    )
    every_s: Annotated[float, Parameter(help="Mean seconds between two faults.", validator=_Seconds)] = 1.0
    worker_pid: Annotated[
        tuple[int, ...],
        Parameter(
            help="Worker on this machine to kill with SIGKILL; repeat for several.",
            negative=(),
            show_default=False,
        ),
    ] = ()
    drain: Annotated[
        tuple[str, ...],
        Parameter(
            help="Worker to drain, as `bench workers` names it; repeat.", negative=(), show_default=False
        ),
    ] = ()
    reset_connections: Annotated[
        bool,
        Parameter(
            help="Also close all connections to the broker now and then, other jobs' too.", negative=()
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class CheckFlags:
    """What is looked at."""

    deadline_s: Annotated[
        float, Parameter(help="A job that has not ended after so long is lost.", validator=_Seconds)
    ] = 900.0
    settle_s: Annotated[
        float, Parameter(help="How long leftovers may stay after the job's end.", validator=_Seconds)
    ] = 180.0
    canary: Annotated[
        str | None,
        Parameter(
            help="Variable with the same random value here and on the workers: given to the agents, "
            "looked for in broker, events, results and --log files."
        ),
    ] = None
    log: Annotated[
        tuple[Path, ...],
        Parameter(help="Log file to look through for the canary; repeat.", negative=(), show_default=False),
    ] = ()
    report: Annotated[Path | None, Parameter(help="Write the report here as JSON.")] = None


_JOB, _FAULTS, _CHECKS = JobFlags(), FaultFlags(), CheckFlags()


def chaos(
    *,
    job: Annotated[JobFlags, Parameter(name="*")] = _JOB,
    faults: Annotated[FaultFlags, Parameter(name="*")] = _FAULTS,
    checks: Annotated[CheckFlags, Parameter(name="*")] = _CHECKS,
    jobs_dir: JobsDir = Path("jobs"),
    json: Json = False,
) -> int:
    """Submit a job of its own, hurt it, and check that nothing is lost or counted twice; exit 1 if so.

    Exits with 1, too, when something you named did not happen, e.g. because the job was over before.

    Touches its own job and what you name, nothing else: messages of the job come three times or
    not at all, its chord is deleted, it is paused, its summary is asked for too early. Workers are
    killed or drained only when named, connections reset only when asked for. Kill, stop or unplug
    what you like meanwhile: the checks hold for that too.
    """
    options = _options(job, faults, checks)
    with Client(jobs_dir=jobs_dir) as client:
        found = run_chaos(client, options, on_submit=lambda name: _announce(name, options))
    if checks.report is not None:
        _write(checks.report, encode(found))
    if json:
        render.print_json(found.model_dump(mode="json"))
    else:
        render.render_report(chaos_report(found))
    return 0 if found.is_proven else 1


def _options(job: JobFlags, faults: FaultFlags, checks: CheckFlags) -> ChaosOptions:
    return ChaosOptions(
        sandbox=job.sandbox,
        trials=job.trials,
        concurrency=job.concurrency,
        trial_s=job.trial_s,
        seed=secrets.randbelow(1 << 31) if faults.seed is None else faults.seed,
        every_s=faults.every_s,
        faults_s=faults.seconds,
        deadline_s=checks.deadline_s,
        settle_s=checks.settle_s,
        kill=faults.worker_pid,
        drain=faults.drain,
        has_resets=faults.reset_connections,
        secret=None if checks.canary is None else _secret(checks.canary),
        logs=checks.log,
    )


def _secret(name: str) -> Secret:
    value = settings_module.process_environ().get(name)
    if not value:
        raise UsageError(
            f"The variable {name} is not set here, so nobody knows what to look for.",
            hint=f"Set {name} to the same random value here and on the workers.",
        )
    return Secret(name, value)


def _announce(name: str, options: ChaosOptions) -> None:
    render.render_notice(
        f"chaos  {name}: {options.trials} trials, faults for {options.faults_s:g} s, seed {options.seed} · "
        f"watch: bench watch {name}"
    )


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StoreError(
            f"The report cannot be written to {str(path)!r}: {error.strerror}.",
            hint="Choose another --report.",
        ) from error
