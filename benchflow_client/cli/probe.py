"""`bench probe`: cheat at a task in every known way and see that nothing is gained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter
from cyclopts.validators import Number

from benchflow_client.api import Client
from benchflow_client.catalog.probe import BASELINE, Trick, find_trick, list_tricks
from benchflow_client.cli import render
from benchflow_client.cli.jobs import JobsDir, Json
from benchflow_client.errors import UsageError
from benchflow_client.handle import JobHandle
from benchflow_client.report import Column, Line, Report, Row, Table
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec, SandboxKind
from benchflow_client.wording import NONE, plural


@dataclass(frozen=True, slots=True)
class RunFlags:
    """How the trials are run."""

    sandbox: Annotated[SandboxKind, Parameter(help="Kind of sandbox.")] = "auto"
    concurrency: Annotated[int, Parameter(help="Trials at once.", validator=Number(gte=1))] = 4


_RUN = RunFlags()


class Attempted(NamedTuple):
    """What one trick gave at one task."""

    task: str
    trick: str
    reward: float | None  # None = no verdict
    code: str  # why there is none; empty = there is one

    @property
    def is_caught(self) -> bool:
        """Whether it gained nothing."""
        return self.reward is None or self.reward <= 0


def probe(
    task: Annotated[str | None, Parameter(help="A task, or a folder of tasks.")] = None,
    /,
    *,
    trick: Annotated[
        tuple[str, ...],
        Parameter(help="Only this trick; repeat for several.", negative=(), show_default=False),
    ] = (),
    list_: Annotated[bool, Parameter(name="--list", help="Name the tricks and stop.", negative=())] = False,
    how: Annotated[RunFlags, Parameter(name="*")] = _RUN,
    jobs_dir: JobsDir = Path("jobs"),
    json: Json = False,
) -> int:
    """Let a built-in agent cheat at a task, one trick a trial; exit 1 when a trick scored.

    Every trick is a normal trial: planned, sent to the fleet, run in a sandbox as the unprivileged
    user, scored by the task's tests. A sound task gives nothing for any of them.
    """
    tricks = tuple(find_trick(name) for name in dict.fromkeys(trick)) if trick else tuple(list_tricks())
    if list_:
        return _show_tricks(tricks, is_json=json)
    if task is None:
        raise UsageError(
            "No task was given.", hint="bench probe tasks/my-task, or --list to see what is tried."
        )
    spec = JobSpec(
        tasks=task,
        agent=tuple(AgentSpec(name=each.agent) for each in tricks),
        sandbox=how.sandbox,
        concurrency=how.concurrency,
        max_attempts=1,
        stop_after_failures=0,
        jobs_dir=str(jobs_dir),
    )
    return _show(*_run(spec, jobs_dir), is_json=json)


def _run(spec: JobSpec, jobs_dir: Path) -> tuple[str, tuple[Attempted, ...]]:
    """Run the job to its end and return its name and what every trick gave."""
    with Client(jobs_dir=jobs_dir) as client:
        handle = client.submit(spec)
        tricks = plural(len(spec.agent), "trick")
        render.render_notice(f"probe  {handle.name}: {tricks} · watch: bench watch {handle.name}")
        handle.wait()
        attempted = _attempted(handle)
        handle.fetch(jobs_dir / handle.name)
    return handle.name, attempted


def _attempted(handle: JobHandle) -> tuple[Attempted, ...]:
    plan = handle.results().plan
    found = []
    for published in handle.trials():
        receipt = published.receipt
        trial = plan.trial(receipt.trial_index)
        code = "" if receipt.reward is not None else receipt.code or receipt.outcome
        name = find_trick(trial.agent.spec.name).name
        found.append(Attempted(trial.task.name, name, receipt.reward, code))
    return tuple(sorted(found, key=lambda each: (each.task, each.trick != BASELINE, each.trick)))


def _show_tricks(tricks: tuple[Trick, ...], *, is_json: bool) -> int:
    if is_json:
        render.print_json([{"trick": each.name, "agent": each.agent, "text": each.text} for each in tricks])
    else:
        rows = tuple(Row((each.name, each.text)) for each in tricks)
        render.render_report((Table((Column("trick"), Column("what it tries", shrink=1)), rows),))
    return 0


def _show(job: str, attempted: tuple[Attempted, ...], *, is_json: bool) -> int:
    scored = [each for each in attempted if not each.is_caught]
    # Without a verdict for no work at all the task says nothing, whatever was tried.
    silent = [each for each in attempted if each.trick == BASELINE and each.reward is None]
    if is_json:
        render.print_json(_data(job, attempted))
    render.render_report(_report(job, attempted, scored, silent))
    return 1 if scored or silent or not attempted else 0


def _data(job: str, attempted: tuple[Attempted, ...]) -> dict[str, Any]:
    return {"job": job, "tricks": [{**each._asdict(), "caught": each.is_caught} for each in attempted]}


def _report(
    job: str, attempted: tuple[Attempted, ...], scored: list[Attempted], silent: list[Attempted]
) -> Report:
    has_tasks = len({each.task for each in attempted}) > 1
    columns = (Column("trick"), Column("reward", "right"), Column(""), Column("why no verdict"))
    rows = tuple(_row(each, has_tasks=has_tasks) for each in attempted)
    return (
        Table((Column("task"), *columns) if has_tasks else columns, rows),
        Line(""),
        _verdict(job, attempted, scored, silent),
    )


def _row(each: Attempted, *, has_tasks: bool) -> Row:
    reward = NONE if each.reward is None else f"{each.reward:g}"
    cells = (each.trick, reward, "caught" if each.is_caught else "NOT caught", each.code or NONE)
    return Row((each.task, *cells) if has_tasks else cells, tone="plain" if each.is_caught else "bad")


def _verdict(
    job: str, attempted: tuple[Attempted, ...], scored: list[Attempted], silent: list[Attempted]
) -> Line:
    if silent or not attempted:
        text = f"No verdict for doing nothing, so this says nothing about the task · bench results {job} --trials"
        return Line(text, label="probe", tone="bad")
    if scored:
        names = ", ".join(dict.fromkeys(each.trick for each in scored))
        return Line(f"scored without the work: {names} · logs: bench fetch {job}", label="probe", tone="bad")
    return Line(f"{plural(len(attempted), 'trial')}, nothing gained", label="probe", tone="good")
