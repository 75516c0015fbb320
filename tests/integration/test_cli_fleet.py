"""The command line as people start it: a process, on a fleet of real processes and on its own."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchflow_client.embedded.process import end
from benchflow_client.embedded.server import start_server
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.redis import RedisLedger
from tests.commands import write_two_tasks
from tests.processes import processes_of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-c", "from benchflow_client.cli.main import main; main()"]
NULL = ("--agent", "nop", "--sandbox", "null")
SLOW = ("--agent", "./slow.sh", "--sandbox", "null")
"""A script's turn takes as long as the worker says that commands do; no other trial takes time."""

JOB = r"[a-z]+-[a-z]+-[0-9a-f]{4}"


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder with some variables."""

    folder: Path
    environ: dict[str, str]

    def run(self, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [*BENCH, *map(str, arguments)],
            cwd=cwd or self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @contextmanager
    def started(self, *arguments: object, until: str) -> Generator[subprocess.Popen[str]]:
        """Start a command and wait for a word on its stderr; it is gone at the end."""
        process = subprocess.Popen(
            [*BENCH, *map(str, arguments)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            read_until(process, until)
            yield process
        finally:
            process.kill()
            process.communicate()


def variables(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    return kept | {
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "BENCHFLOW_STATE_DIR": str(folder / "state"),
        "BENCHFLOW_USER": "ana",
        "BENCHFLOW_DOCKER_HOST": "unix:///nonexistent.sock",
        **more,
    }


def read_until(process: subprocess.Popen[str], word: str) -> None:
    """Read lines of a command's stderr until one has the word."""
    assert process.stderr is not None
    seen = ""
    while word not in seen:
        line = process.stderr.readline()
        assert line, f"the command ended: {seen}"
        seen += line


def write_tasks(folder: Path) -> Path:
    (folder.parent / "slow.sh").write_text("#!/bin/sh\n")
    return write_two_tasks(folder)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, RedisLedger]]:
    """Start a server, and a worker by `bench worker`; return a shell for its clients."""
    folder = tmp_path_factory.mktemp("fleet")
    server = start_server(folder / "server")
    shell = Shell(
        folder,
        variables(
            folder,
            BENCHFLOW_BROKER_URL=server.url,
            BENCHFLOW_STORE_URL=str(folder / "store"),
            BENCHFLOW_NULL_EXEC_S="0.2",
        ),
    )
    write_tasks(folder / "tasks")
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*BENCH, "worker", "--queues", "null,control", "--slots", "2"],
            env=shell.environ,
            stdout=log,
            stderr=log,
        )
    ledger = RedisLedger.at(server.url)
    try:
        until(ledger.workers, what=(folder / "worker.log").read_text)
        yield shell, ledger
    finally:
        worker.terminate()
        assert worker.wait(timeout=60) == 0
        end(server.pid)


@pytest.fixture
def shell(fleet: tuple[Shell, RedisLedger]) -> Shell:
    return fleet[0]


@pytest.fixture
def ledger(fleet: tuple[Shell, RedisLedger]) -> RedisLedger:
    return fleet[1]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell of a user without a fleet; no process of it is left afterwards."""
    write_tasks(tmp_path / "tasks")
    yield Shell(tmp_path, variables(tmp_path, BENCHFLOW_NULL_EXEC_S="20"))
    left = processes_of(tmp_path / "state")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == set()


def submitted(shell: Shell, *arguments: str, agent: tuple[str, ...] = NULL) -> str:
    done = shell.run("submit", "tasks", *agent, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_is_submitted_watched_and_read(shell: Shell, ledger: RedisLedger) -> None:
    name = submitted(shell)
    assert re.fullmatch(JOB, name)

    watched = shell.run("watch", name)
    results = shell.run("results", name, "--json")
    rows = list(csv.DictReader(io.StringIO(shell.run("results", "@last", "--csv").stdout)))

    assert (watched.returncode, watched.stdout) == (1, "")
    assert f"{name}  2/2" in watched.stderr
    assert json.loads(results.stdout)["job_name"] == name
    assert results.stderr == ""
    assert [(row["task"], row["outcome"]) for row in rows] == [("one", "unscored"), ("two", "unscored")]
    assert ledger.progress(name).state is JobState.CLOSED


def test_any_folder_can_fetch_a_job_by_a_prefix_or_as_the_last(shell: Shell, tmp_path: Path) -> None:
    name = submitted(shell, "--job-name", "quetzal-flies-far")
    shell.run("watch", name)

    by_prefix = shell.run("fetch", "quetzal", "mine", cwd=tmp_path)
    as_last = shell.run("fetch", "@last", "last", cwd=tmp_path)
    again = shell.run("fetch", name, "mine", cwd=tmp_path)

    assert (by_prefix.returncode, as_last.returncode, again.returncode) == (0, 0, 0)
    for folder in ("mine", "last"):
        assert json.loads((tmp_path / folder / "summary.json").read_text())["job_name"] == name
    unknown = shell.run("fetch", "nothing-like-it", "x", cwd=tmp_path)
    assert (unknown.returncode, (tmp_path / "x").exists()) == (2, False)


def test_jobs_and_workers_are_listed_for_people_and_programs(shell: Shell) -> None:
    name = submitted(shell)

    jobs, workers = shell.run("jobs"), shell.run("workers")
    jobs_data, workers_data = shell.run("jobs", "--json"), shell.run("workers", "--json")

    assert (jobs.stdout, workers.stdout) == ("", "")
    assert name in jobs.stderr
    assert json.loads(jobs_data.stdout)[0]["job"] == name
    assert json.loads(workers_data.stdout)[0]["queues"] == ["null", "control"]
    assert jobs_data.stderr == workers_data.stderr == ""


def test_a_cancelled_job_counts_every_trial(shell: Shell, ledger: RedisLedger) -> None:
    name = submitted(shell, "--tries", "300", agent=SLOW)

    done = shell.run("cancel", name, "--reason", "quota")

    assert (done.returncode, done.stdout, f"{name} is being cancelled" in done.stderr) == (0, "", True)
    until(lambda: ledger.progress(name).state is JobState.CLOSED)
    summary = json.loads(shell.run("results", name, "--json").stdout)
    assert summary["total"] == 600
    assert summary["cancelled"] > 500


def test_without_a_terminal_a_run_is_plain_lines(shell: Shell) -> None:
    done = shell.run("run", "tasks", *NULL, "--tries", "3", "--job-name", "plain")

    assert done.stdout == ""
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("plain  ")]
    assert lines[-1].startswith("plain  6/6")
    assert len(lines) == len(set(lines))


def test_json_on_stdout_parses_while_text_for_people_is_on_stderr(shell: Shell) -> None:
    done = shell.run("run", "tasks", *NULL, "--json", "--job-name", "data")

    assert json.loads(done.stdout)["job_name"] == "data"
    assert "2 tasks x 1 agent" in done.stderr
    views = shell.run("watch", "data", "--json")
    assert json.loads(views.stdout.splitlines()[-1])["state"] == "closed"


def test_a_reader_that_has_seen_enough_is_no_error(shell: Shell) -> None:
    submitted(shell, "--tries", "50", agent=SLOW)
    command = " ".join(["exec 3>&1;", *(f"'{part}'" for part in BENCH), "results --csv", "| head -c 1"])

    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"],
        cwd=shell.folder,
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("t", "")
    shell.run("cancel", "@last")


def test_ctrl_c_leaves_the_job_to_the_fleet_and_says_how_to_come_back(
    shell: Shell, ledger: RedisLedger
) -> None:
    arguments = ("run", "tasks", *SLOW, "--tries", "300", "--job-name", "left-alone")
    with shell.started(*arguments, until="left-alone  ") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (130, "")
    assert "still running on the fleet" in err
    assert "bench watch left-alone" in err
    assert "bench cancel left-alone" in err
    assert "Traceback" not in err
    finished = ledger.progress("left-alone").finished
    until(lambda: ledger.progress("left-alone").finished > finished)
    shell.run("cancel", "left-alone")


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_stops_an_embedded_run_and_leaves_no_process(alone: Shell, presses: int) -> None:
    arguments = ("run", "tasks", *SLOW, "--job-name", "mine", "--tries", "3")
    with alone.started(*arguments, until="running") as process:
        assert len(processes_of(alone.folder / "state")) >= 2

        process.send_signal(signal.SIGINT)
        read_until(process, "stopping mine")
        if presses == 2:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    until(lambda: not processes_of(alone.folder / "state"))
    if presses == 1:
        summary = json.loads((alone.folder / "jobs/mine/summary.json").read_text())
        assert (summary["total"], summary["cancelled"]) == (6, 6)


def test_an_embedded_run_needs_nothing_and_leaves_only_results(alone: Shell) -> None:
    quick = Shell(alone.folder, {**alone.environ, "BENCHFLOW_NULL_EXEC_S": "0"})

    done = quick.run("run", "tasks", *NULL, "--job-name", "mine")
    later = quick.run("results", "--json")

    assert done.returncode == 1, done.stderr
    assert "embedded (1 worker, 4 slots)" in done.stderr
    assert json.loads(later.stdout)["job_name"] == "mine"
    assert processes_of(alone.folder / "state") == set()


def test_a_submitted_embedded_job_goes_on_until_its_fleet_is_stopped(alone: Shell) -> None:
    quick = Shell(alone.folder, {**alone.environ, "BENCHFLOW_NULL_EXEC_S": "0"})
    name = submitted(quick)

    watched = quick.run("watch", name)
    down = quick.run("down")

    assert (watched.returncode, f"{name}  2/2" in watched.stderr) == (1, True)
    assert (down.returncode, down.stderr) == (0, "down\n")


def test_whoever_reads_the_output_of_up_is_not_kept_waiting(alone: Shell) -> None:
    """`log=$(bench up 2>&1)` ends although the fleet lives on: it holds none of the pipes."""
    done = alone.run("up", "--slots", "1")
    try:
        assert (done.returncode, "up: 1 worker, 1 slots" in done.stderr) == (0, True)
    finally:
        assert alone.run("down").stderr == "down\n"


def test_the_worker_program_is_a_command_with_help_and_errors_of_its_own(alone: Shell) -> None:
    helped = alone.run("worker", "--help")
    without = alone.run("worker")

    assert (helped.returncode, "--queues" in helped.stdout) == (0, True)
    assert (without.returncode, "BENCHFLOW_BROKER_URL is not set" in without.stderr) == (3, True)
