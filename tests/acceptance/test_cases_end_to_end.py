"""Inputs that break runners, through a whole job: client, broker, worker process, sandbox, store."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from benchflow_client.api import Client
from benchflow_client.handle import JobHandle
from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.summary import Summary
from benchflow_client.schema.trial import TrialResult
from tests.fleets import PLAIN, case_task, embedded_fleet, instance_of
from tests.worlds import write_task

WAIT_S = 120.0
SMALL_DISK = "[environment]\nstorage_mb = 32\n"
SHORT_TESTS = "[verifier]\ntimeout_sec = 2\n"
DERIVED = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

KINDS = (pytest.param("docker", marks=pytest.mark.docker), pytest.param("local", marks=pytest.mark.root))

ODD_NAMES = (
    "-dash-first",
    "7",
    "CamelCase1.Beta",
    "LOUD",
    "loud",
    "L_package",
    "dot-last.",
    "two words",
    "ñandú-任务",
    "org__repo-12907",
    "nul",
    "b" * 130,
)

ENDINGS: Mapping[str, tuple[str, float | None, str]] = {
    "02-bare-number": ("failed", 0.75, ""),
    "04-stops-before-reward": ("verifier_errored", None, "verifier.no_reward"),
    "08-metrics-only": ("verifier_errored", None, "verifier.invalid_reward"),
    "12-tools-not-there": ("failed", 0.0, ""),
    "16-plain": ("passed", 1.0, ""),
    "20-silent-and-slow": ("verifier_errored", None, "verifier.timeout"),
    "22-binary-output": ("passed", 1.0, ""),
    "24-much-output": ("passed", 1.0, ""),
    "42-child-holds-pipe": ("passed", 1.0, ""),
    "50-fills-disk": ("passed", 1.0, ""),
}
"""Case -> outcome, reward and failure code of its reference solution, on any sandbox."""

LOST = {"sandbox.lost", "sandbox.exec_failed", "verifier.sandbox_lost", "verifier.harden_failed"}


@dataclass(frozen=True)
class Finished:
    """A closed job of broken tasks."""

    job: str
    folder: Path
    summary: Summary
    trials: Mapping[str, PublishedTrial]  # by task
    memory_growth_bytes: int

    def result(self, task: str) -> TrialResult:
        found = self.trials[task].result
        assert found is not None
        return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[Client]:
    with embedded_fleet(home, BENCHFLOW_RECONCILE_S="0.5") as made:
        yield made


@pytest.fixture(scope="module", params=KINDS)
def finished(request: pytest.FixtureRequest, client: Client, home: Path) -> Finished:
    """Run every broken task once, a second time where infrastructure may be to blame."""
    tasks = home / f"broken-{request.param}"
    for case in (*ENDINGS, "50-removes-programs", "50-ends-everything"):
        case_task(tasks, case, toml=SMALL_DISK if case == "50-fills-disk" else "")
    (tasks / "20-silent-and-slow" / "task.toml").write_text(SHORT_TESTS)
    (tasks / "04-stops-before-reward" / "solution" / "solve.sh").write_text("#!/bin/sh\ntrue\n")
    warm_up(client, tasks / "16-plain", str(request.param))
    worker = instance_of(home).worker_pid
    before = peak_memory_bytes(worker)

    handle = client.submit(spec(tasks, sandbox=str(request.param), max_attempts=2))

    summary = handle.wait(timeout_s=WAIT_S)
    return Finished(
        job=handle.name,
        folder=home / "jobs" / handle.name,
        summary=summary,
        trials=by_task(handle),
        memory_growth_bytes=peak_memory_bytes(worker) - before,
    )


def spec(tasks: Path, **changes: Any) -> JobSpec:
    return JobSpec(**{"tasks": str(tasks), "agent": ("oracle",), "concurrency": 4, **changes})


def warm_up(client: Client, task: Path, sandbox: str) -> None:
    """Let the worker load what it needs, so that its memory afterwards is that of the trials."""
    assert client.submit(spec(task, sandbox=sandbox)).wait(timeout_s=WAIT_S).passed == 1


def by_task(handle: JobHandle) -> dict[str, PublishedTrial]:
    plan = handle.results().plan
    return {plan.trial(trial.receipt.trial_index).task.name: trial for trial in handle.trials()}


def peak_memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10  # type: ignore[index]


def attempt_folders(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/result.json"))


def test_each_broken_task_ends_in_its_own_way(finished: Finished) -> None:
    endings = {
        task: (trial.receipt.outcome, trial.receipt.reward, trial.receipt.code)
        for task, trial in finished.trials.items()
        if task in ENDINGS
    }

    assert endings == ENDINGS


def test_tests_that_stop_before_they_write_a_reward_say_where_and_are_not_repeated(
    finished: Finished,
) -> None:
    result = finished.result("04-stops-before-reward")

    assert result.attempt == 1
    assert "exit code 1" in (result.verifier_error or "")
    assert "reward" in (result.verifier_error or "")
    assert result.verifier_error_category == "verifier_failure"
    assert "checking" in result.failures[0].detail


def test_a_solution_that_fails_for_a_missing_tool_makes_the_task_suspect(finished: Finished) -> None:
    warnings = finished.result("12-tools-not-there").warnings

    assert any("verifier may be broken" in warning for warning in warnings)
    assert any("12-tools-not-there" in caveat for caveat in finished.summary.caveats)


def test_a_task_without_version_or_name_is_called_by_its_folder_when_its_tests_time_out(
    finished: Finished,
) -> None:
    result = finished.result("20-silent-and-slow")

    assert "'20-silent-and-slow' timed out after 2 s" in (result.verifier_error or "")
    assert result.verifier_error_category == "verifier_timeout"
    assert (result.timing.verifier or 0) < 20


def test_bytes_that_are_no_text_are_kept_and_every_document_is_json(finished: Finished) -> None:
    folder = finished.folder / finished.result("22-binary-output").rollout_name

    assert (folder / "verifier/test-stdout.txt").read_bytes().startswith(b"\xfe\xff\x00\xc3\x28 bytes\n")
    assert (folder / "agent/oracle.txt").read_bytes().startswith(b"\xff\x00\x1b[31m\r\b\n")
    documents = [path for path in finished.folder.rglob("*.json*") if path.is_file()]
    assert len(documents) > 30
    for path in documents:
        for text in path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            json.dumps(json.loads(text, parse_constant=no_constant), ensure_ascii=False).encode("utf-8")


def no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def test_much_output_costs_neither_memory_nor_disk_and_its_end_is_kept(finished: Finished) -> None:
    folder = finished.folder / finished.result("24-much-output").rollout_name
    output = (folder / "verifier/test-stdout.txt").read_bytes()

    assert len(output) < 1_100_000
    assert b"bytes truncated" in output
    assert output.endswith(b"\nTHE-END\n")
    assert finished.memory_growth_bytes < 80 << 20


def test_a_child_that_holds_the_output_does_not_hold_the_trial(finished: Finished) -> None:
    assert (finished.result("42-child-holds-pipe").timing.total or 0) < 12


def test_a_sandbox_that_broke_never_passes_in_silence(finished: Finished) -> None:
    """A kill from inside does not reach the first process of every sandbox: then the answer is missing."""
    without_programs = finished.trials["50-removes-programs"].receipt
    without_processes = finished.trials["50-ends-everything"].receipt

    assert without_programs.reward is None
    assert without_programs.code in LOST
    assert without_programs.attempts == 2
    assert without_processes.code in LOST or without_processes.reward == 0.0


def test_nothing_of_a_broken_task_is_left(finished: Finished, home: Path) -> None:
    if finished.summary.environment == "docker":
        listed = ["docker", "ps", "--all", "--quiet", "--filter", f"label=bf.job={finished.job}"]
        left = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    else:
        left = [path.name for path in (home / "state" / "sandboxes").glob("*")]

    assert left == []
    assert os.listdir(home / "state" / "scratch" / str(instance_of(home).worker_pid)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_any_name_run_and_stay_apart(client: Client, home: Path, kind: str) -> None:
    tasks = home / f"names-{kind}"
    for name in ODD_NAMES:
        write_task(tasks / name, files=PLAIN)

    handle = client.submit(spec(tasks, sandbox=kind))

    assert handle.wait(timeout_s=WAIT_S).passed == len(ODD_NAMES)
    plan, folders = handle.results().plan, attempt_folders(home / "jobs" / handle.name)
    assert len(folders) == len({folder.casefold() for folder in folders}) == len(ODD_NAMES)
    assert all(DERIVED.fullmatch(name) for name in (*folders, *(task.slug for task in plan.tasks)))
    assert {task.name for task in plan.tasks} == set(ODD_NAMES)
    changed = {task.slug for task in plan.tasks if task.slug != task.name}
    assert len(changed) == 8
    assert all(re.search(r"-[0-9a-f]{8}$", slug) for slug in changed)
    shown = {json.loads(path.read_text())["task_name"] for path in tmp_results(home, handle.name)}
    assert shown == set(ODD_NAMES)


def tmp_results(home: Path, job: str) -> Iterator[Path]:
    return (home / "jobs" / job).glob("*/result.json")


def test_agents_whose_names_differ_in_one_sign_stay_apart(client: Client, home: Path) -> None:
    task = write_task(home / "apart" / "task")
    models = ("foo/bar", "foo_bar", "foo:bar")
    agents = tuple(AgentSpec(name="oracle", model=model) for model in models)

    handle = client.submit(spec(task, agent=agents, tries=2, sandbox="null"))

    summary = handle.wait(timeout_s=WAIT_S)
    assert len(attempt_folders(home / "jobs" / handle.name)) == 6
    assert [(group.agent, group.model, group.total) for group in summary.groups] == [
        (f"oracle@{model}", model, 2) for model in models
    ]


def test_jobs_of_the_same_second_do_not_share_a_file(client: Client, home: Path) -> None:
    task = write_task(home / "second" / "task")

    with ThreadPoolExecutor(4) as threads:
        handles = list(threads.map(lambda _: client.submit(spec(task, sandbox="null")), range(4)))
    totals = [handle.wait(timeout_s=WAIT_S).total for handle in handles]

    assert totals == [1, 1, 1, 1]
    assert len({handle.name for handle in handles}) == 4
    folders = [attempt_folders(home / "jobs" / handle.name) for handle in handles]
    assert [len(found) for found in folders] == [1, 1, 1, 1]
