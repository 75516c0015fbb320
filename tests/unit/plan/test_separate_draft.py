"""A job that asks for a sandbox of the tests' own: which paths it may name, which tasks it may run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchflow_client.errors import TaskError
from benchflow_client.plan.draft import find_work, make_draft
from benchflow_client.schema.job import JobSpec
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.separate import as_run
from tests.worlds import write_task


@pytest.mark.parametrize(
    "path",
    ["/", "/usr", "/usr/", "/usr/./bin", "/proc/1", "/logs/verifier", "/tests", "/opt/benchflow/bin", "relative", "/a/../b"],
)  # fmt: skip
def test_system_folders_and_odd_paths_are_not_carried(path: str) -> None:
    with pytest.raises(ValidationError, match=r"system folder|absolute path"):
        JobSpec(tasks="t", agent=("nop",), separate_verifier_include=(path,))


def test_one_path_or_several_are_kept_in_their_shortest_form() -> None:
    assert JobSpec(
        tasks="t", agent=("nop",), separate_verifier_include="/opt//tool/"
    ).separate_verifier_include == ("/opt/tool",)


def test_flag_changes_where_tests_run_and_what_the_task_says_stays(tmp_path: Path) -> None:
    plain = read_task(write_task(tmp_path / "plain"))
    own = read_task(write_task(tmp_path / "own", toml="[verifier.environment]\ncpus = 2\n"))
    spec = JobSpec(tasks="t", agent=("nop",), separate_verifier=True)

    assert as_run(plain, spec).config.verifier.sandbox_mode == "separate"
    assert as_run(own, spec) == own
    assert as_run(plain, spec.model_copy(update={"separate_verifier": False})) == plain


def test_task_whose_tests_cannot_have_one_is_named_before_anything_starts(tmp_path: Path) -> None:
    write_task(
        tmp_path / "tasks" / "steps",
        toml='[[steps]]\nname = "a"\n',
        files={"steps/a/instruction.md": "Do a.\n"},
    )
    spec = JobSpec(tasks=str(tmp_path / "tasks"), agent=("nop",), sandbox="local", separate_verifier=True)

    with pytest.raises(TaskError) as caught:
        make_draft(find_work(spec, cache_dir=tmp_path / "cache"), sandbox="local")

    assert caught.value.problems == (
        "steps: steps[0].verifier.sandbox: the tests of a step run where its agent worked",
    )
