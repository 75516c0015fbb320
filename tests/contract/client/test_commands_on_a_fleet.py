"""Commands against a fleet of one real worker whose sandboxes run nothing."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import SandboxRecord
from benchflow_client.report import Check
from tests.waiting import until

Bench = Callable[..., Any]
NULL = ("--agent", "nop", "--sandbox", "null")
SLOW = ("--agent", "./slow.sh", "--sandbox", "null")


@contextmanager
def ctrl_c_in(function: str, *, asleep: bool = False) -> Generator[None]:
    """Press Ctrl-C in this process as soon as a function of ours runs in the main thread.

    Args:
        function: Qualified name.
        asleep: Only while it waits itself: what it calls has returned, what it yielded was used.
    """

    def is_there() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        if asleep:
            at, there = frame.f_lasti, frame.f_code.co_qualname == function
            threading.Event().wait(0.05)
            later = sys._current_frames()[threading.main_thread().ident or 0]
            return there and later is frame and later.f_lasti == at
        while frame is not None:
            if frame.f_code.co_qualname == function:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def press() -> None:
        until(is_there)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def ctrl_c_at(function: str) -> Generator[None]:
    """Press Ctrl-C in this process at the very beginning of a function of ours, by its qualified name."""

    def press(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname == function:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(press)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_a_run_shows_the_plan_the_pace_and_the_numbers(bench: Bench, tasks: Path, configured: Any) -> None:
    done = bench("run", tasks, *NULL, "--job-name", "shown", "--tries", "2")

    assert done.code == 1  # null sandboxes give no verdict
    assert done.out == ""
    assert "2 tasks x 1 agent x 2 tries = 4 trials" in done.err
    assert "1 worker, 2 slots" in done.err
    assert "shown  4/4" in done.err
    assert "0 scored (0 passed, 0 failed) · 4 without a verdict" in done.err
    assert "results jobs/shown" in done.err


def test_a_run_brings_its_results_home(bench: Bench, tasks: Path, home: Path, configured: Any) -> None:
    bench("run", tasks, *NULL, "--job-name", "home", "--jobs-dir", "out")

    documents = {path.name for path in (home / "out/home").iterdir() if path.is_file()}
    assert documents == {"spec.json", "plan.json", "summary.json", "results.jsonl"}
    assert len(list((home / "out/home").glob("*/result.json"))) == 2


def test_a_run_as_json_writes_the_summary_and_nothing_else(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    done = bench("run", tasks, *NULL, "--json", "--job-name", "as-json")

    summary = json.loads(done.out)
    assert (summary["job_name"], summary["total"]) == ("as-json", 2)


def test_a_submitted_job_is_named_on_stdout_and_runs_on(bench: Bench, tasks: Path, configured: Any) -> None:
    done = bench("submit", tasks, *NULL)
    name = done.out.strip()

    assert (done.code, done.out) == (0, f"{name}\n")
    assert f"bench watch {name}" in done.err
    until(lambda: configured.ledger.progress(name).state is JobState.CLOSED)
    assert json.loads(bench("submit", tasks, *NULL, "--json", "--job-name", "named").out) == {"job": "named"}


def test_a_dry_run_sends_nothing(bench: Bench, tasks: Path, configured: Any) -> None:
    before = configured.ledger.jobs()

    human = bench("run", tasks, *NULL, "--dry-run")
    data = bench("submit", tasks, "--agent", "nop", "--dry-run", "--json")

    assert (human.code, human.out, "= 2 trials" in human.err) == (0, "", True)
    assert json.loads(data.out)["sandbox"] == "docker"  # the only worker serves none, so the best is named
    assert configured.ledger.jobs() == before


def test_a_job_is_watched_to_its_end(bench: Bench, tasks: Path, configured: Any) -> None:
    bench("submit", tasks, *NULL, "--job-name", "watched", "--tries", "3")

    done = bench("watch", "watched")
    again = bench("watch", "watched", "--json")

    assert (done.code, done.out) == (1, "")
    assert "watched  6/6" in done.err
    views = [json.loads(line) for line in again.out.splitlines()]
    assert (again.code, views[-1]["state"], views[-1]["finished"]) == (0, "closed", 6)


def test_ctrl_c_stops_watching_and_not_the_job(bench: Bench, tasks: Path, configured: Any) -> None:
    name = bench("submit", tasks, *SLOW, "--tries", "200").out.strip()

    with ctrl_c_in("JobHandle.watch"):
        done = bench("watch", name)

    assert done.code == 130
    assert f"bench watch {name}" in done.err
    assert configured.ledger.progress(name).state is JobState.OPEN
    bench("cancel", name)


def test_ctrl_c_leaves_a_run_to_the_fleet(bench: Bench, tasks: Path, configured: Any) -> None:
    with ctrl_c_in("follow"):
        done = bench("run", tasks, *SLOW, "--tries", "200", "--job-name", "left")

    assert done.code == 130
    assert "still running on the fleet" in done.err
    assert "bench cancel left" in done.err
    assert configured.ledger.progress("left").state is JobState.OPEN
    bench("cancel", "left")


@pytest.mark.parametrize("command", ["run", "submit"])
def test_ctrl_c_before_anything_is_sent_says_so(
    bench: Bench, tasks: Path, home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("BENCHFLOW_BROKER_URL", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")

        with ctrl_c_in("RedisLedger.ping"):
            done = bench(command, tasks, *NULL)

    assert (done.code, done.out) == (130, "")
    assert done.err == "interrupted before anything was submitted\n"
    assert not (home / "jobs").exists()


@pytest.mark.parametrize("place", ["store_draft", "create_document", "Dispatcher.open", "Dispatcher.release"])
@pytest.mark.parametrize("command", ["run", "submit"])
def test_ctrl_c_while_a_job_is_sent_leaves_nothing_of_it(
    bench: Bench, tasks: Path, configured: Any, command: str, place: str
) -> None:
    before = configured.ledger.jobs()

    with ctrl_c_at(place):
        done = bench(command, tasks, *NULL, "--job-name", "cut")

    assert (done.code, done.out) == (130, "")
    assert "interrupted before anything was submitted" in done.err
    assert list(configured.store.glob("cut/*")) == []
    assert configured.ledger.jobs() == before


def test_ctrl_c_while_a_job_is_taken_up_again_does_not_call_it_unsent(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    bench("run", tasks, *NULL, "--job-name", "halfway", "--tries", "10")

    with ctrl_c_at("Dispatcher.release"):
        done = bench("run", tasks, *NULL, "--tries", "10", "--resume", "halfway")

    assert done.code == 130
    assert "before anything was submitted" not in done.err
    assert configured.ledger.progress("halfway").state is JobState.OPEN  # the workers go on with it
    bench("cancel", "halfway")
    until(lambda: configured.ledger.progress("halfway").state is JobState.CLOSED)
    assert configured.ledger.progress("halfway").finished == 20


def test_a_cancelled_job_ends_and_says_who_and_why(bench: Bench, tasks: Path, configured: Any) -> None:
    name = bench("submit", tasks, *SLOW, "--tries", "200").out.strip()

    first = bench("cancel", name, "--reason", "quota")
    second = bench("cancel", name)

    assert (first.code, f"{name} is being cancelled" in first.err) == (0, True)
    assert (second.code, "over or cancelled before" in second.err) == (0, True)
    until(lambda: configured.ledger.progress(name).state is JobState.CLOSED)
    progress = configured.ledger.progress(name)
    assert (progress.cancelled_by, progress.cancel_reason) == ("ana", "quota")
    assert progress.finished == 400
    rows = json.loads(bench("jobs", "--json").out)
    assert next(row["state"] for row in rows if row["job"] == name) == "cancelled"


def test_results_are_shown_as_text_json_and_csv(bench: Bench, tasks: Path, configured: Any) -> None:
    bench("run", tasks, *NULL, "--job-name", "told")

    text = bench("results", "told")
    data = bench("results", "told", "--json")
    table = bench("results", "told", "--csv")

    assert (text.code, text.out, "2 without a verdict" in text.err) == (0, "", True)
    assert json.loads(data.out)["job_name"] == "told"
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert [(row["task"], row["agent"], row["outcome"], row["reward"]) for row in rows] == [
        ("one", "nop", "unscored", ""),
        ("two", "nop", "unscored", ""),
    ]


@pytest.mark.parametrize("flag", ["--failed", "--trials"])
def test_single_trials_are_listed(bench: Bench, tasks: Path, configured: Any, flag: str) -> None:
    name = f"listed{flag}"
    bench("run", tasks, *NULL, "--job-name", name)

    done = bench("results", name, flag)

    assert done.err.count("unscored") >= 2
    assert "one__" in done.err


def test_results_of_a_running_job_are_those_so_far(bench: Bench, tasks: Path, configured: Any) -> None:
    name = bench("submit", tasks, *SLOW, "--tries", "100").out.strip()
    until(lambda: configured.ledger.progress(name).finished > 0)

    done = bench("results", name)

    assert (done.code, "unfinished" in done.err) == (0, True)
    bench("cancel", name)


def test_the_last_job_and_a_prefix_find_a_job(bench: Bench, tasks: Path, configured: Any) -> None:
    for name in ("zebra-one", "zebra-two"):
        bench("run", tasks, *NULL, "--job-name", name)

    assert json.loads(bench("results", "--json").out)["job_name"] == "zebra-two"
    assert json.loads(bench("results", "@last", "--json").out)["job_name"] == "zebra-two"
    assert json.loads(bench("results", "zebra-o", "--json").out)["job_name"] == "zebra-one"
    both = bench("results", "zebra")
    assert (both.code, "zebra-two, zebra-one" in both.err) == (2, True)


def test_a_job_is_fetched_into_any_folder(
    bench: Bench, tasks: Path, tmp_path: Path, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench("run", tasks, *NULL, "--job-name", "carried")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    done = bench("fetch", "carried", "copy")

    assert (done.code, "documents of carried in copy" in done.err) == (0, True)
    assert (tmp_path / "elsewhere/copy/summary.json").is_file()


def test_jobs_and_workers_are_listed(bench: Bench, tasks: Path, configured: Any) -> None:
    bench("run", tasks, *NULL, "--job-name", "seen")

    jobs, workers = bench("jobs"), bench("workers")
    data = json.loads(bench("workers", "--json").out)

    assert (jobs.code, jobs.out, workers.out) == (0, "", "")
    line = next(line for line in jobs.err.splitlines() if line.split()[:1] == ["seen"])
    assert line.split()[1:4] == ["ana", "done", "2/2"]
    assert "null,control" in workers.err
    assert [(row["queues"], row["slots"], row["state"]) for row in data] == [
        (["null", "control"], 2, "healthy")
    ]


@pytest.mark.parametrize("verb", ["list", "audit", "clean"])
def test_a_fleet_that_runs_nothing_has_no_sandbox_to_show(bench: Bench, configured: Any, verb: str) -> None:
    human, data = bench("sandboxes", verb), bench("sandboxes", verb, "--json")

    assert (human.code, human.out) == (0, "")
    assert (data.code, json.loads(data.out)) == (0, [])


def test_a_sandbox_on_record_is_listed(bench: Bench, configured: Any) -> None:
    record = SandboxRecord("box-1", "null", "here", "", "calm-otter-7f3a", 3, 1, "w/1", time.time())
    book = RedisSandboxBook(RedisConnection.at(configured.url))
    book.write(record)
    try:
        (row,) = json.loads(bench("sandboxes", "--json").out)
        human = bench("sandboxes")
    finally:
        book.erase("box-1")

    assert (row["kind"], row["id"], row["state"]) == ("null", "box-1", "recorded")
    assert (row["trial"], row["worker"]) == ("calm-otter-7f3a #3", "w/1")
    assert "box-1" in human.err


def test_a_job_that_no_worker_can_run_says_what_it_waits_for(
    bench: Bench, tasks: Path, configured: Any
) -> None:
    name = bench("submit", tasks, "--agent", "nop", "--sandbox", "local").out.strip()

    with ctrl_c_in("JobHandle.watch", asleep=True):
        done = bench("watch", name, "--json")

    views = [json.loads(line) for line in done.out.splitlines()]
    assert {view["waiting_for"] for view in views} == {"a worker for queue local"}
    rows = json.loads(bench("jobs", "--json").out)
    assert next(row["finished"] for row in rows if row["job"] == name) == 0
    bench("cancel", name)


def test_warnings_of_tasks_stand_above_the_run(bench: Bench, tasks: Path, configured: Any) -> None:
    (tasks / "one/task.toml").write_text('version = "1.0"\nunheard_of = 1\n')

    for arguments in (["--dry-run"], []):
        assert "one: " in bench("run", tasks, *NULL, *arguments).err.partition("warning")[2]


def test_the_doctor_names_the_fleet_and_the_store(bench: Bench, configured: Any) -> None:
    done = bench("doctor", "--json")

    checks = {row["subject"]: Check(**row) for row in json.loads(done.out)}
    assert checks["broker"].status == "PASS"
    assert "1 workers" in checks["broker"].text
    assert "can be written" in checks["store"].text
    assert list(configured.store.glob(".bundles/doctor*")) == []
