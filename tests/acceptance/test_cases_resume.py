"""A job goes on where it was: cases 66 and 68, through the command line and a real fleet of this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import Outcome, TrialResult
from benchflow_client.store.documents import read_document, write_document
from benchflow_client.store.files import FileStore
from benchflow_client.store.layout import result_key
from tests.fleets import PLAIN, run_bench
from tests.worlds import write_task

pytestmark = pytest.mark.root

TASKS = ("bug", "half", "infra", "ok", "vtime", "wrong")
LOST: dict[str, tuple[Outcome, str, str]] = {
    "infra": (Outcome.VERIFIER_ERRORED, "verifier.sandbox_lost", "session transport lost"),
    "vtime": (Outcome.VERIFIER_ERRORED, "verifier.timeout", "verifier timed out after 30.0s"),
    "bug": (Outcome.VERIFIER_ERRORED, "verifier.invalid_reward", 'reward.txt: could not parse "PASS"'),
}
"""Task -> how its trial is made to have ended without a verdict."""

RUN = ("run", "tasks", "--agent", "oracle", "--sandbox", "local")
Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_bench(*arguments, home=tmp_path)

    return run


@pytest.fixture
def interrupted(tmp_path: Path, bench: Bench) -> dict[str, TrialResult]:
    """Run a job of six tasks, then let it look as if it had been cut off: see the case's fixture.

    Returns:
        Task -> the result that is in the store, as long as one is.
    """
    for name in TASKS:
        write_task(tmp_path / "tasks" / name, files=PLAIN)
    assert bench(*RUN, "--job-name", "j").returncode == 0
    store, job = FileStore(tmp_path / "jobs"), tmp_path / "jobs/j"
    for name in ("summary.json", "results.jsonl"):
        (job / name).unlink()
    results = {}
    for path in sorted(job.glob("*/result.json")):
        result = changed(read_document(store, f"j/{path.parent.name}/result.json", TrialResult))
        if result.task_name == "half":
            path.unlink()
        else:
            write_document(store, result_key("j", result.rollout_name), result)
            results[result.task_name] = result
    return results


def changed(result: TrialResult) -> TrialResult:
    """Return a result as the case has it for the task."""
    if result.task_name == "wrong":
        return result.model_copy(update={"outcome": Outcome.FAILED, "rewards": {"reward": 0.0}})
    if result.task_name not in LOST:
        return result
    outcome, code, text = LOST[result.task_name]
    update = {"outcome": outcome, "rewards": None, "failures": (Failure(code=code, message=text),)}
    return result.model_copy(update=update)


def decided(output: str) -> dict[str, str]:
    """Return task -> `run` or `keep`, as it was told."""
    return {task: verb for verb, task in re.findall(r"^ (run|keep) +(\w+) +oracle ", output, re.MULTILINE)}


def rows(job: Path) -> dict[str, Any]:
    lines = (job / "results.jsonl").read_text().splitlines()
    return {row["task"]: row for row in map(json.loads, lines)}


def test_what_infrastructure_lost_runs_again_and_the_rest_is_kept_until_it_is_asked_for(
    tmp_path: Path, bench: Bench, interrupted: dict[str, TrialResult]
) -> None:
    shown = bench(*RUN, "--resume", "j", "--dry-run")
    done = bench(*RUN, "--resume", "j")

    expected = {"infra": "run", "vtime": "run", "half": "run", "ok": "keep", "wrong": "keep", "bug": "keep"}
    assert (decided(shown.stderr), decided(done.stderr)) == (expected, expected), done.stderr
    assert re.search(r"run +half +oracle +interrupted", done.stderr)
    assert "bench resume j --retry verifier.invalid_reward" in done.stderr
    assert done.stderr.endswith("Resumed job j: 3 finished trials reused, 3 ran now\n")
    assert done.returncode == 1  # `bug` has no verdict
    found = rows(tmp_path / "jobs/j")
    assert {task: row["outcome"] for task, row in found.items()} == {
        **dict.fromkeys(("infra", "vtime", "half", "ok"), "passed"),
        "wrong": "failed",
        "bug": "verifier_errored",
    }
    for task in ("ok", "wrong", "bug"):
        assert found[task]["folder"] == interrupted[task].rollout_name
    for task in ("infra", "vtime"):
        # What was replaced is still there to be read.
        assert found[task]["folder"] != interrupted[task].rollout_name
        assert (tmp_path / "jobs/j" / interrupted[task].rollout_name / "result.json").is_file()

    again = bench(*RUN, "--resume", "@last", "--json")

    named = bench("resume", "j", "--retry", "verifier.invalid_reward")

    assert "Resumed job j: 6 finished trials reused, 0 ran now; these are the earlier results" in again.stderr
    assert json.loads(again.stdout)["verifier_errored"] == 1
    assert decided(named.stderr) == {**dict.fromkeys(TASKS, "keep"), "bug": "run"}
    assert (named.returncode, rows(tmp_path / "jobs/j")["bug"]["outcome"]) == (0, "passed")


@pytest.fixture
def job_files(tmp_path: Path) -> Path:
    """The case's job files in this product's keys: b differs from a in order, place and pace, c in a timeout."""
    write_task(tmp_path / "task", files=PLAIN)
    for name, text in (
        ("a", "tasks: ./task\nagent: [{name: oracle}]\nconcurrency: 4\njobs_dir: ./jobs\n"),
        ("b", "agent: [{name: oracle}]\ntasks: ./task/\nconcurrency: 8\njobs_dir: ./other\n"),
        ("c", "tasks: ./task\nagent: [{name: oracle}]\ntimeout_multiplier: 2.0\n"),
    ):
        (tmp_path / f"{name}.yaml").write_text(f"{text}sandbox: local\n")
    return tmp_path


def test_a_job_is_the_same_until_something_changes_a_score_and_is_run_anew_only_when_asked(
    job_files: Path, bench: Bench
) -> None:
    assert bench("run", "-f", "a.yaml", "--job-name", "first").returncode == 0
    shutil.copytree(job_files / "jobs", job_files / "other")

    resumed = bench("run", "-f", "b.yaml", "--resume", "first")
    before = sorted((job_files / "jobs").rglob("*"))
    refused = bench("run", "-f", "c.yaml", "--resume", "first")
    after = sorted((job_files / "jobs").rglob("*"))
    fresh = bench("run", "-f", "c.yaml", "--resume", "first", "--fresh", "--job-name", "first")

    assert resumed.returncode == 0, resumed.stderr
    assert "Resumed job first: 1 finished trial reused, 0 ran now" in resumed.stderr
    assert (refused.returncode, refused.stdout, after) == (1, "", before)
    assert "timeout_multiplier: 1.0 -> 2.0" in refused.stderr
    assert "--fresh" in refused.stderr
    assert fresh.returncode == 0, fresh.stderr
    jobs = sorted(path.name for path in (job_files / "jobs").iterdir() if not path.name.startswith("."))
    assert (len(jobs), jobs[0]) == (2, "first")
    assert set(before) <= set((job_files / "jobs").rglob("*"))
