"""What a command prints, and where."""

import io
import json
from datetime import UTC, datetime

import pytest
from rich.console import Console

from benchflow_client.cli import render
from benchflow_client.cli.live import PlainProgress
from benchflow_client.errors import BrokerError, MissingExtraError, TaskError
from benchflow_client.report import Check, JobRow, Line, WorkerRow
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.trial import Receipt
from benchflow_client.summary import aggregate
from benchflow_client.watch import WatchView


def make_console(*, is_terminal=True, width=80):
    return Console(
        file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, markup=False
    )


def shown(draw, *args, is_terminal=True, **kwargs):
    console = make_console(is_terminal=is_terminal)
    draw(*args, console=console, **kwargs)
    return console.file.getvalue()


def make_plan():
    job = JobSpec(tasks="tasks", agent=("oracle", "nop"))
    return Plan(
        job="calm-otter-7f3a",
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=job,
        sandbox="docker",
        source=SourceInfo(path="tasks"),
        tasks=(PlannedTask(name="fix-build", slug="fix-build", digest="0" * 64),),
        agents=tuple(PlannedAgent(label=a.name, slug=a.name, spec=a) for a in job.agent),
    )


def make_summary():
    receipts = [
        Receipt(0, "passed", 1.0, "", 1, 2.0, None, None, "t"),
        Receipt(1, "errored", None, "sandbox.lost", 3, 2.0, None, None, "t"),
    ]
    return aggregate(make_plan(), receipts, elapsed_s=16)


def test_error_has_its_hint_below_and_no_markup_is_read():
    error = BrokerError(
        "Task 'fetch-note' cannot be read: task.toml [agent] timeout_sec = \"ten\": expected a number of seconds.",
        hint="[bold]Run[/bold] `bench check`.",
    )

    assert shown(render.render_error, error) == (
        "error  Task 'fetch-note' cannot be read: task.toml [agent] timeout_sec = \"ten\":\n"
        "       expected a number of seconds.\n"
        "       [bold]Run[/bold] `bench check`.\n"
    )


def test_error_in_a_log_stays_on_one_line():
    text = shown(render.render_error, BrokerError("word " * 40 + "end"), is_terminal=False)

    assert text == f"error  {'word ' * 40}end\n"


def test_error_lists_the_problems_of_tasks_up_to_a_bound():
    error = TaskError(
        "25 tasks cannot be read.", problems=tuple(f"t{n}/task.toml, line 1" for n in range(25))
    )

    lines = shown(render.render_error, error).splitlines()

    assert lines[:2] == ["error  25 tasks cannot be read.", "       t0/task.toml, line 1"]
    assert lines[-1] == "       ... and 5 more"
    assert len(lines) == 22


def test_missing_extra_names_the_command():
    assert "pip install 'benchflow-workers[docker]'" in shown(
        render.render_error, MissingExtraError("sandbox 'docker'", "docker")
    )


def test_plan_and_numbers_fit_the_terminal():
    plan = shown(render.render_plan, make_plan(), fleet="embedded (1 worker, 4 slots)")
    table = shown(render.render_summary, make_summary())
    causes = shown(render.render_failures, make_summary(), evidence={"sandbox.lost": "killed by [oom]"})
    done = shown(render.render_done, make_summary(), folder="jobs/x")

    assert plan.startswith("plan   1 task x 2 agents x 1 try = 2 trials")
    assert " oracle     1/1   1.00  1.00 (0.21–1.00)         1.00         0     –\n" in table
    assert "    killed by [oom]\n" in causes
    assert done == "done in 16 s · results jobs/x · next: bench results calm-otter-7f3a\n"
    assert max(map(len, (plan + table + causes).splitlines())) <= 80


def test_fleet_tables_and_findings_are_drawn():
    jobs = shown(
        render.render_jobs, [JobRow("calm-otter-7f3a", "ana", "running", 812, 1000, 64, 0.41, "slots")]
    )
    workers = shown(render.render_workers, [WorkerRow("box-1/1", ("docker",), 8, 8, 7, "healthy", 7300)])
    doctor = shown(render.render_doctor, [Check("FAIL", "broker", "refuses", "bench up")])

    assert jobs.splitlines()[1] == " calm-otter-7f3a  ana  running  812/1000  (+64)   0.41  slots"
    assert workers.splitlines()[1] == " box-1/1  docker    8/8        7  healthy  2 h"
    assert doctor == "FAIL  broker  refuses\n              bench up\n"
    assert "bench cancel x" in shown(render.render_detached, "x")


def test_people_read_stderr_and_programs_stdout(capsys):
    render.render_report((Line("for people"),))
    render.print_json({"name": "é"})
    render.print_json_lines([{"a": 1}, {"a": None}])
    render.print_csv(("task", "reward"), [("a,b", None), ("c", 1.0)])

    out, err = capsys.readouterr()
    assert err == "for people\n"
    assert out == '{\n  "name": "\\u00e9"\n}\n{"a":1}\n{"a":null}\ntask,reward\n"a,b",\nc,1.0\n'
    assert json.loads(out.partition("}\n")[0] + "}") == {"name": "é"}


def test_a_console_without_unicode_gets_ascii():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")

    render.render_report((Line("0.76 – 1.00 · a…b · ≥$1"),), console=Console(file=file, width=80))

    file.flush()
    assert file.buffer.getvalue() == b"0.76 - 1.00 | a~b | >$1\n"


def test_colour_is_only_for_terminals_that_want_it(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = Console(file=io.StringIO(), width=80, force_terminal=True)

    for console in (plain, coloured):
        render.render_report((Line("bad", label="error", tone="bad"),), console=console)

    assert "\x1b[31m" not in plain.file.getvalue()
    assert "\x1b[1;31merror" in coloured.file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_drawn_on_terminals_and_written_in_logs(is_terminal):
    console = make_console(is_terminal=is_terminal)
    view = WatchView(
        job="calm-otter-7f3a\x1b[2J", state="open", total=2, finished=0, running=1, waiting=1, phases=(),
        waiting_for="slots", outcomes=(), retried=0, agents=(), elapsed_s=1.0, eta_s=None, cancelled="",
        taken_at=0.0,
    )  # fmt: skip

    with render.open_progress(console=console) as progress:
        progress.update(view)

    assert isinstance(progress, PlainProgress) is not is_terminal
    text = console.file.getvalue()
    assert "\x1b[2J" not in text
    assert "running 1" in text
